// teratron data {inspect,verify,sample,indices} and teratron merge: looking at and joining indexed datasets.
#pragma once

#include <span>
#include <string>

namespace teratron {

/// `args` come after the word "data". Results go to stdout; returns the exit code. Throws UserError and Fault.
///
///   inspect PREFIX...   sizes, element type, a histogram of the lengths, and the first document: ids, or text when
///                       tokenizer flags are given
///   verify PREFIX...    checks every index entry; with --vocab-size every token too
///   sample PREFIX       prints documents: ids, or text when tokenizer flags are given
///   indices PREFIX      builds the index arrays of a GPT dataset as training would (--split, --split-part,
///                       --seq-length, --num-samples, --seed) and writes document_index.npy, sample_index.npy and
///                       shuffle_index.npy to --output-dir
int data_command(std::span<const std::string> args);

/// `args` come after the word "merge". --input FOLDER (all datasets in it, by name) or PREFIX... (in that order),
/// --output-prefix PREFIX.
int merge_command(std::span<const std::string> args);

}  // namespace teratron
