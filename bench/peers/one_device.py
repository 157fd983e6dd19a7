"""What the peers of BERT and T5 share: flags, and the step that torch.compile makes, on one GPU or the CPU."""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_gpt import FullPrecisionMasters, WeightsAlone, peer_parser, timed_steps


def one_device_parser(description, shape, shapes):
    parser = peer_parser(description, shape, shapes=shapes)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--micro-batch-size", type=int, help="default: the shape's")
    return parser


def build(args, make):
    """What `make` returns, a model and its batch, on the device and in the precision."""
    torch.manual_seed(0)
    with torch.device(args.device):
        model, batch = make()
    return model.bfloat16() if args.precision == "bf16" else model, batch


def timed_training(args, model, batch, gpu_attention):
    """Seconds of a step, and the memory of a GPU, for report(); bf16 has fp32 masters."""
    optimizer = (FullPrecisionMasters if args.precision == "bf16" else WeightsAlone)(model)
    compiled = torch.compile(model)

    def step():
        for _ in range(args.micro_batches):
            (compiled(batch) / args.micro_batches).backward()
            optimizer.after_backward()
        optimizer.step()

    on_gpu = args.device == "cuda"
    with sdpa_kernel(gpu_attention if on_gpu else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        seconds = timed_steps(step, args.steps, lambda elapsed: elapsed >= args.warm_up_seconds, args.device)
    return seconds, dict(memory_bytes=torch.cuda.max_memory_allocated()) if on_gpu else {}
