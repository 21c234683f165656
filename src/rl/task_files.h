// SPDX-License-Identifier: Apache-2.0
// A task as files that training reads: problems, a tokenizer, a small model, run.yamls
// (docs/tasks.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "rl/tasks.h"

namespace hocket::rl {

struct TaskFilesOptions {
  TaskOptions task;
  TaskSizes sizes;
  uint64_t seed = 1;
  std::string folder;
  /// MODEL that is to learn the task: prompts are chats, and there is no warm-up. Empty: a small
  /// model of the folder's own.
  std::string chat_model;
};

/// Writes train.jsonl, held_out.jsonl, rl.yaml and task.json; for a small model also warmup.jsonl,
/// warmup.yaml, tokenizer.json, tokenizer_config.json, config.json and generation_config.json.
/// Returns their paths. The same options give the same bytes. Throws Error for options that the
/// task does not take, and for too few problems. Also throws for a folder with files of others or
/// with a training of another task.
std::vector<std::string> write_task_files(const TaskFilesOptions& options);

/// Returns the tokenizer of the small models: the end of text, which begins every text, too, and a
/// token for each of kTaskCharacters.
data::Tokenizer task_tokenizer();

}  // namespace hocket::rl
