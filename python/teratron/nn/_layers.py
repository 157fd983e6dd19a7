"""Parallel layers as torch.nn.Module."""
import torch

from .._load import engine
from .._ranks import Group


class Scope:
    """A place in the tree of parameters: scope / "decoder" / "layers.0". All scopes of one root share a set of parameters.

    Args:
        dtype: of parameters: torch.float32, bfloat16 or float64. device: "cpu" or "cuda". seed: of initial values, which depend
            on it, the name and the place of an element alone, so that they are the same in every layout.

    Attributes:
        prefix: the name so far.

    Example:
        root = nn.Scope(seed=1234)
        layer = nn.ColumnParallelLinear(root / "mlp" / "linear_fc1", 64, 256, parallel)  # mlp.linear_fc1.weight
    """

    def __init__(self, dtype=torch.float32, device="cpu", seed=1234):
        self.dtype, self.device = dtype, torch.device(device)
        self._scope = engine.Scope(engine.ParameterSet(str(dtype).removeprefix("torch."), str(device), seed))

    def __truediv__(self, name):
        inner = Scope.__new__(Scope)
        inner.dtype, inner.device = self.dtype, self.device
        inner._scope = self._scope / str(name)
        return inner

    @property
    def prefix(self):
        return self._scope.prefix

    @property
    def _set(self):
        return self._scope.set

    def parameters(self):
        """(name, tensor) of all parameters of the root, in order; a tied one once."""
        return self._set.parameters()

    def main_grad(self, name):
        """The gradient that has accumulated for a parameter: fp32, of this rank's part. KeyError for another name."""
        return self._set.main_grad(name)


class Parallel:
    """The tensor-parallel ranks that layers are sharded over.

    Args:
        mesh: a Mesh. sequence_parallel: whether activations between layers are this rank's part of the sequence.

    Attributes:
        group: the Group. sequence_parallel.

    Example:
        parallel = nn.Parallel(teratron.Mesh(world, tp=2), sequence_parallel=True)
    """

    def __init__(self, mesh, sequence_parallel=False):
        self.sequence_parallel = sequence_parallel
        self._parallel = engine.TensorParallel(mesh._mesh, sequence_parallel)
        self.group = Group(self._parallel.group)

    def sequence_shard(self, x):
        """This rank's part of x [S, ...] under sequence parallelism, else x."""
        return self._parallel.sequence_shard(x)


class _Layer(torch.nn.Module):
    """A layer of the engine, and its parameters as those of the module, by their names below the scope."""

    def __init__(self, scope, make):
        super().__init__()
        taken = [name for name, _ in scope.parameters() if name.startswith(scope.prefix + ".")]
        if taken:
            raise ValueError(f"there is a layer at {scope.prefix} already, with {taken[0]}")
        before = len(scope.parameters())
        self._scope = scope  # holds the parameters
        self._layer = make(scope._scope)
        for name, tensor in scope.parameters()[before:]:
            _register(self, name.removeprefix(scope.prefix + "."), tensor)


def _register(module, name, tensor):
    *folders, last = name.split(".")
    for folder in folders:
        if folder not in module._modules:
            module.add_module(folder, torch.nn.Module())
        module = module._modules[folder]
    tensor._is_param = True  # a torch.nn.Parameter, of the engine's memory
    module.register_parameter(last, tensor)


class ColumnParallelLinear(_Layer):
    """y = x W^T + b; every rank has rows of W and computes its columns of y.

    Args:
        scope: a Scope. in_features, out_features: of the whole layer. parallel: a Parallel. bias: whether there is b.
        std: of the normal distribution of W.

    Raises:
        ConfigError: the ranks do not divide out_features. ValueError: the scope has a layer already.

    Example:
        y = nn.ColumnParallelLinear(root / "fc1", 64, 256, parallel)(x)  # [S, B, 64] -> [S, B, 256 / tp], S whole
    """

    def __init__(self, scope, in_features, out_features, parallel, bias=True, std=0.02):
        super().__init__(scope, lambda at: engine.ColumnLinear(at, in_features, out_features, bias, std, parallel._parallel))

    def forward(self, x):
        """[S, B, in_features] -> [S, B, out_features / tp]."""
        return self._layer.forward(x).tensor()


class RowParallelLinear(_Layer):
    """y = x W^T + b; every rank has columns of W for its columns of x; partial results are summed, then b is added.

    Args:
        As of ColumnParallelLinear; the ranks divide in_features.

    Example:
        y = nn.RowParallelLinear(root / "fc2", 256, 64, parallel)(x)  # [S, B, 256 / tp] -> [S, B, 64]
    """

    def __init__(self, scope, in_features, out_features, parallel, bias=True, std=0.02):
        super().__init__(scope, lambda at: engine.RowLinear(at, in_features, out_features, bias, std, parallel._parallel))

    def forward(self, x, residual=None):
        """[S, B, in_features / tp] -> [S, B, out_features], with the residual added."""
        return self._layer.forward(x, residual).tensor()


class VocabParallelEmbedding(_Layer):
    """Word embeddings, rows sharded over the tensor-parallel ranks.

    Args:
        scope, parallel, std: as of ColumnParallelLinear. num_embeddings: ids. embedding_dim: hidden size. padded: rows with
            padding, which the ranks divide; None: num_embeddings, rounded up to a multiple of 128 * tp. One of the same
            name on the last pipeline stage has the same values: it is tied.

    Example:
        x = nn.VocabParallelEmbedding(root / "word_embeddings", 50257, 768, parallel)(ids)  # [S, B] -> [S, B, 768]
    """

    def __init__(self, scope, num_embeddings, embedding_dim, parallel, padded=None, std=0.02):
        unit = 128 * parallel.group.size
        self.num_embeddings, self.padded = num_embeddings, padded or (num_embeddings + unit - 1) // unit * unit
        super().__init__(scope, lambda at: engine.VocabParallelEmbedding(
            at, num_embeddings, self.padded, embedding_dim, std, parallel._parallel))

    def forward(self, ids):
        """[S, B] -> [S, B, embedding_dim], S of this rank's part under sequence parallelism."""
        return self._layer.forward(ids)


class Embedding(_Layer):
    """Rows of a matrix that all ranks have: learned positions, token types.

    Args:
        As of VocabParallelEmbedding.

    Example:
        x = nn.Embedding(root / "position_embeddings", 1024, 768, parallel)(positions, x)  # x + rows
    """

    def __init__(self, scope, num_embeddings, embedding_dim, parallel, std=0.02):
        super().__init__(scope, lambda at: engine.Embedding(at, num_embeddings, embedding_dim, std, parallel._parallel))

    def forward(self, ids, x):
        """x [S, B, embedding_dim] plus the rows of ids [S, B], in place; both of this rank's part of the sequence."""
        return self._layer.add_to(x, ids)


class Norm(_Layer):
    """LayerNorm, or RMSNorm, over the last dimension.

    Args:
        scope, parallel: as of ColumnParallelLinear. width: of that dimension. rms: whether it is RMSNorm. eps.

    Example:
        normed, residual = nn.Norm(root / "input_layernorm", 768, parallel)(x)
    """

    def __init__(self, scope, width, parallel, rms=False, eps=1e-5):
        super().__init__(scope, lambda at: engine.Norm(at, width, rms, eps, parallel._parallel))

    def forward(self, x):
        """x [..., width] -> (norm(x), x): use the second for a residual branch, and backward needs one pass for both. x may be
        the output of a layer of this module with a bias whose gradient is due."""
        return self._layer.forward_with_residual(x)


class MLP(_Layer):
    """fc2(gelu(fc1(x))).

    Args:
        scope, parallel, std: as of ColumnParallelLinear. hidden_size, ffn_hidden_size. output_std: of fc2; None: std.

    Example:
        y = nn.MLP(root / "mlp", 768, 3072, parallel)(normed, residual)
    """

    def __init__(self, scope, hidden_size, ffn_hidden_size, parallel, std=0.02, output_std=None):
        stds = (std, std if output_std is None else output_std)
        super().__init__(scope, lambda at: engine.Mlp(at, hidden_size, ffn_hidden_size, stds, parallel._parallel))

    def forward(self, x, residual=None):
        """[S, B, hidden_size] -> the same, plus the residual: an output with a bias whose gradient is due, for a Norm or
        apply_bias_grad()."""
        return self._layer.forward(x, residual)


class SelfAttention(_Layer):
    """Multi-head attention, heads sharded over the tensor-parallel ranks.

    Args:
        scope, parallel, std: as of ColumnParallelLinear. hidden_size, num_attention_heads. output_std: of the output
            projection; None: std. causal: whether a token sees those before it alone.

    Example:
        y = nn.SelfAttention(root / "self_attention", 768, 12, parallel)(normed, positions, residual)
    """

    def __init__(self, scope, hidden_size, num_attention_heads, parallel, std=0.02, output_std=None, causal=True):
        stds = (std, std if output_std is None else output_std)
        super().__init__(scope, lambda at: engine.SelfAttention(
            at, hidden_size, num_attention_heads, causal, stds, parallel._parallel))

    def forward(self, x, positions, residual=None):
        """[S, B, hidden_size] -> the same, plus the residual, as MLP. positions: [S, B] of the whole sequence."""
        return self._layer.forward(x, positions, residual)


class TransformerLayer(torch.nn.Module):
    """h = x + attention(norm(x)), then h + mlp(norm(h)).

    Args:
        As of SelfAttention and MLP; ffn_hidden_size: None: 4 * hidden_size.

    Example:
        x = nn.TransformerLayer(root / "decoder" / "layers.0", 768, 12, parallel)(x, positions)
    """

    def __init__(self, scope, hidden_size, num_attention_heads, parallel, ffn_hidden_size=None, std=0.02, output_std=None):
        super().__init__()
        self.input_layernorm = Norm(scope / "input_layernorm", hidden_size, parallel)
        self.self_attention = SelfAttention(scope / "self_attention", hidden_size, num_attention_heads, parallel, std, output_std)
        self.pre_mlp_layernorm = Norm(scope / "pre_mlp_layernorm", hidden_size, parallel)
        self.mlp = MLP(scope / "mlp", hidden_size, ffn_hidden_size or 4 * hidden_size, parallel, std, output_std)

    def forward(self, x, positions):
        """[S, B, hidden_size] -> the same, as MLP."""
        normed, residual = self.input_layernorm(x)
        h = self.self_attention(normed, positions, residual)
        normed, residual = self.pre_mlp_layernorm(h)
        return self.mlp(normed, residual)


class OutputLayer(torch.nn.Module):
    """Logits by the weight of the word embeddings, and their losses.

    Args:
        embedding: a VocabParallelEmbedding. parallel: its Parallel.

    Example:
        losses = nn.OutputLayer(words, parallel)(x, labels)  # [S, B, hidden], [S, B] -> [S, B]
    """

    def __init__(self, embedding, parallel):
        super().__init__()
        self._vocabulary = embedding.num_embeddings
        self._embedding = [embedding]  # its parameters are not this module's
        self._head = engine.TiedHead(embedding._layer, parallel._parallel)

    def logits(self, x):
        """[S, B, hidden] -> [S, B, padded / tp], S whole: this rank's part."""
        return self._head.logits(x)

    def forward(self, x, labels):
        """Cross entropies [S, B], S whole, in fp32, without the logits in memory twice."""
        return self._head.losses(x, labels, self._vocabulary)


def apply_bias_grad(x):
    """The tensor of a layer's output, whose backward completes the gradient of the layer's bias. To be used before plain torch
    operations, and for what a pipeline stage sends.

    Example:
        return nn.apply_bias_grad(layer(x, positions))
    """
    return x.tensor() if isinstance(x, engine.Hidden) else x


def vocab_parallel_cross_entropy(logits, labels, parallel, vocabulary=None):
    """Cross entropies of logits whose last dimension is sharded over the tensor-parallel ranks.

    Args:
        logits: [S, B, V / tp]. labels: [S, B], ids of the whole vocabulary. parallel: a Parallel. vocabulary: logits beyond
            are padding; None: all count.

    Returns:
        [S, B] in fp32, the same on all ranks of the group.

    Example:
        losses = nn.vocab_parallel_cross_entropy(output.logits(x), labels, parallel, 50257)
    """
    group, width = parallel.group, logits.shape[-1]
    first = group.rank * width
    logits = logits.float()
    if vocabulary is not None and first + width > vocabulary:
        padding = torch.arange(first, first + width, device=logits.device) >= vocabulary
        logits = logits.masked_fill(padding, float("-inf"))
    most = group.all_reduce(logits.detach().amax(-1), "max")
    shifted = logits - most.unsqueeze(-1)
    total = group.reduce_from(shifted.exp().sum(-1))
    mine = (labels >= first) & (labels < first + width)
    places = torch.where(mine, labels - first, 0).unsqueeze(-1)
    found = torch.where(mine, shifted.gather(-1, places).squeeze(-1), 0.0)
    return total.log() - group.reduce_from(found)
