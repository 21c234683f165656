// SPDX-License-Identifier: Apache-2.0
// Texts made into the data of a run: a tokenizer of bytes and the end of text, prepared shards.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "data/prepare.h"
#include "data/tokenizer/bpe_train.h"
#include "tests/data/data_util.h"

namespace hocket::data {

/// Ids of the tokenizer of prepare_texts.
inline constexpr int32_t kByteVocabulary = 257;

/// Writes the texts to `folder`/in, prepares them and returns the folder of the shards.
inline std::string prepare_texts(const TempFolder& folder, const std::vector<std::string>& texts,
                                 double valid_fraction) {
  for (size_t i = 0; i < texts.size(); ++i) {
    folder.add(fmt::format("in/{}.txt", i), texts[i]);
  }
  PrepareOptions options;
  options.corpus = {.inputs = {folder / "in"}, .valid_fraction = valid_fraction};
  options.tokenizer = folder / "tok";
  options.output = folder / "out";
  BpeTrainOptions bpe;
  bpe.vocab_size = kByteVocabulary;
  train_bpe(scan_corpus(options.corpus).texts(false), bpe).save_folder(options.tokenizer);
  prepare(options);
  return options.output;
}

}  // namespace hocket::data
