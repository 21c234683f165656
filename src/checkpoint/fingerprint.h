// SPDX-License-Identifier: Apache-2.0
// Identity of a model's files, by their contents, at a small cost whatever their size.
#pragma once

#include <string>

#include "base/hash.h"

namespace hocket::checkpoint {

/// Adds the files of a model's folder, or a GGUF file, to `hasher`: names, sizes and contents.
/// Files above 64 MiB count with their headers and pieces of every tensor.
void hash_model_files(const std::string& path, Hasher* hasher);

}  // namespace hocket::checkpoint
