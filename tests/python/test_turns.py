"""Who may call a trainer when: threads, hooks, callbacks, children of fork(); and what becomes of it when it is dropped."""
import threading
import time

import pytest
import teratron
import torch
from small import C, Same, losses


class Slow:
    """A dataset whose thread is often within it."""

    def __len__(self):
        return 1000

    def __getitem__(self, i):
        time.sleep(0.005)
        return {"text": [(i + s) % 200 for s in range(65)]}


def slow(**more):
    return teratron.Trainer(C(mock_data=False, eval_iters=0), dataset={"train": Slow()}, **more)


def test_trainers_and_iterators_may_be_dropped_while_the_data_is_read(script):
    ended = script("""
from test_turns import slow
for dropped in range(5):
    trainer = slow()
    trainer.step()
    del trainer
    trainer = slow()
    batches = trainer.batches()
    next(batches)
    del batches
    trainer.close()
trainer = slow()
batches = trainer.batches()
next(batches)
print("all dropped")  # and the last ones are open
""", timeout=100)
    assert "all dropped" in ended.stdout and ended.returncode == 0, ended.stderr


def test_threads_take_turns():
    with teratron.Trainer(C()) as plain:
        expected = losses(plain, 8)
    found = []
    with teratron.Trainer(C(), train_step=Same) as trainer:
        threads = [threading.Thread(target=lambda: found.extend(losses(trainer, 2))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert trainer.iteration == 8
    assert sorted(found) == sorted(expected)


CALLS = {"step": lambda t: t.step(), "close": lambda t: t.close(), "evaluate": lambda t: t.evaluate("valid", 1),
         "parameters": lambda t: t.parameters(), "batches": lambda t: t.batches(), "load": lambda t: t.load()}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_hooks_may_not_call_their_trainer(call):
    def loss(values, batch):
        assert trainer.iteration == 0
        call(trainer)

    with teratron.Trainer(C(), train_step=loss) as trainer:
        with pytest.raises(RuntimeError, match="the trainer is at work"):
            trainer.step()


def test_datasets_may_not_either():
    class Calls(Slow):
        def __getitem__(self, i):
            trainer.step()

    with teratron.Trainer(C(mock_data=False), dataset={"train": Calls()}) as trainer:
        with pytest.raises(teratron.DataError, match="a dataset uses a trainer"):
            trainer.step()


def test_callbacks_may_call_all_but_close(tmp_path):
    class Calls(teratron.Callback):
        def on_step(self, trainer, result):
            assert trainer.evaluate("valid", 1).loss > 0 and len(trainer.parameters()) > 0
            trainer.save()
            with pytest.raises(RuntimeError, match="at work"):
                trainer.close()
            return False

    with teratron.Trainer(C(save=str(tmp_path)), callbacks=[Calls()]) as trainer:
        trainer.train()


def test_a_result_is_there_after_the_trainer():
    with teratron.Trainer(C()) as plain:
        expected = losses(plain, 1)
    with teratron.Trainer(C()) as trainer:
        trainer._engine.run_ahead(True)
        result = trainer.step()
    assert [result.loss] == expected
    trainer = teratron.Trainer(C())
    trainer._engine.run_ahead(True)
    result = trainer.step()
    del trainer
    assert [result.loss] == expected


FORK = """
import gc, os
from test_turns import slow
trainer = slow()
batches = trainer.batches()
loss = trainer.step().loss
child = os.fork()
if child == 0:
    try:
        trainer.step()
    except RuntimeError as error:
        print(error, flush=True)
    {end}
print("child", os.waitpid(child, 0)[1] >> 8, flush=True)
print("goes on", trainer.step().loss != loss, flush=True)
"""


@pytest.mark.parametrize("end, code", [("sys.exit(3)", 3), ("raise ValueError", 1), ("del trainer, batches; gc.collect(); sys.exit(4)", 4)])
def test_children_of_fork_end(script, end, code):
    ended = script(FORK.format(end=end), timeout=100)
    assert "child of fork()" in ended.stdout and f"child {code}\ngoes on True" in ended.stdout, ended.stderr


def test_a_second_interrupt_ends_a_hook():
    import signal

    def loss(values, batch):
        signal.raise_signal(signal.SIGINT)
        while True:
            signal.raise_signal(signal.SIGINT)

    with teratron.Trainer(C(), train_step=loss) as trainer, pytest.raises(KeyboardInterrupt):
        trainer.step()


def test_a_model_in_several_threads(tmp_path):
    with teratron.Trainer(C(save=str(tmp_path))) as trainer:
        trainer.save()
    model = teratron.LanguageModel(tmp_path, device="cpu")
    prompts = [f"{i} {i + 1}" for i in range(4)]
    expected = [model.generate([prompt], max_new_tokens=4, greedy=True) for prompt in prompts]
    found = {}
    threads = [threading.Thread(target=lambda p=prompt: found.update({p: model.generate([p], max_new_tokens=4, greedy=True)}))
               for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[prompt] for prompt in prompts] == expected
    assert model.logits([[1, 2]]).shape == (1, 2, 201)
    with pytest.raises(TypeError, match="list of texts"):
        model.generate("1 2")


def test_an_exception_of_a_backward_in_python_arrives_as_itself():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise KeyError("of the user")

    with teratron.Trainer(C(), train_step=lambda values, batch: (Bad.apply(values).sum(), 1)) as trainer:
        with pytest.raises(KeyError, match="of the user"):
            trainer.step()
