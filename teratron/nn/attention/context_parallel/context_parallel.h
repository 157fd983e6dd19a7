// Context parallelism: the ranks of a group hold different tokens of the same samples. Only attention sees
// tokens of other ranks; all other layers compute token by token.
//
//   communication  what moves                        attention of a rank
//   p2p            keys and values, block by block   its queries over one rank's keys after the other, merged
//                                                    by their log-sum-exp, while the next block arrives (Liu
//                                                    et al. 2023, "Ring Attention"; Megatron-LM's p2p)
//   all_gather     keys and values of all ranks      its queries over all keys (Llama 3, Grattafiori et al.
//                                                    2024)
//   a2a            queries, keys, values and         all queries and keys of a part of the heads (Jacobs et
//                  outputs, tokens against heads     al. 2023, "DeepSpeed Ulysses")
//
// All give the results of one rank. With dropout, ALiBi or relative positions, whose scores depend on
// positions, with windows, chunks and soft caps, p2p gathers keys and values as all_gather does; values that
// are narrower than keys travel with zeros beside them.
//
// Encoders see every key of their segment: each step of p2p then has all queries and one rank's keys.
#pragma once

#include "teratron/nn/tokens/context_cut.h"

namespace teratron {

struct AttentionRequest;

enum class ContextParallelComm : uint8_t { p2p, all_gather, a2a };

/// attention() of this rank's queries over the keys of all ranks: the request has this rank's tokens, with
/// the whole samples' segments and biases by distance. Self-attention. Collective.
at::Tensor context_parallel_attention(const AttentionRequest& request, const ContextParallel& context,
                                      ContextParallelComm comm);

}  // namespace teratron
