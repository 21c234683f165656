// SPDX-License-Identifier: Apache-2.0
// Chat template of a model and its adapter. Either folder may have it.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/model_files.h"
#include "data/chat/chat_template.h"

namespace hocket::checkpoint {

struct ModelTemplate {
  std::string source;  ///< folder or GGUF file that has it; the model's if there is none
  std::optional<data::ChatTemplate> chat_template;
};

/// Returns the chat template in `file`, unless that is empty, else the adapter's, else the model's;
/// where `model` is itself an adapter's folder, its base's comes last. Special tokens are those of
/// the adapter, and the model's where it lacks them; with `file` they are the model's. `key`: the
/// option or key that names `file`, for errors.
ModelTemplate find_template(const std::string& model, const std::string& adapter,
                            const std::string& file, const std::string& key = "--chat-template");

/// Gives files of an adapter's folder that have no chat template the base's.
void complete_template(const std::string& folder, ModelFiles* files);

}  // namespace hocket::checkpoint
