// SPDX-License-Identifier: Apache-2.0
// Tokens and a chat template added to a model: rows of the embedding and of an untied output head,
// and the files beside the weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/convert.h"
#include "checkpoint/model_files.h"
#include "checkpoint/model_weights.h"
#include "models/config.h"

namespace hocket::checkpoint {

/// Tokens to add, and settings beside them.
struct TokenAdditions {
  std::vector<std::string> special = {};  ///< texts of tokens that `skip_special_tokens` leaves out
  std::vector<std::string> words = {};    ///< texts of others
  /// Texts of tokens for these purposes, added as special ones where they are none; empty: as is.
  std::string bos = {}, eos = {}, pad = {};
  std::string chat_template = {};  ///< empty: as is
  /// Source of new rows: "mean" of the present tokens' rows; "text:TEXT" for the mean of the rows
  /// of a text's tokens; or a .safetensors file with rows for each tensor in order.
  std::string init = "mean";
  int64_t pad_to_multiple_of = 1;  ///< of the number of rows
};

/// A model with more tokens. `source` reads the weights that it was made of.
struct ExtendedModel {
  ModelSource source;
  ModelFiles files;
  std::vector<std::pair<std::string, int64_t>> added;  ///< tokens with their ids
  int64_t rows_before = 0;                             ///< of the embedding
  std::vector<std::string> notes;                      ///< sentences about other changes
};

/// Adds tokens to a model. Its ids stay, so that logits of old tokens are the same. New tokens take
/// the rows behind those of the tokenizer; the tensors grow where there are too few. Throws Error
/// for a tokenizer with gaps in its ids, a chat template that does not parse, and rows of other
/// sizes.
ExtendedModel add_tokens(const ModelWeights& weights, const models::ModelConfig& config,
                         ModelFiles files, const TokenAdditions& additions);

}  // namespace hocket::checkpoint
