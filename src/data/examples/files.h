// SPDX-License-Identifier: Apache-2.0
// The data files that the path of a source stands for.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/examples/source.h"

namespace hocket::data {

struct DataFile {
  enum class Kind : uint8_t { json, text, table, tokens };
  std::string path;  ///< of tokens without its ending
  Kind kind = Kind::json;
};

/// Returns the files, sorted. In a folder or below a wildcard those with the ending of a data file
/// are taken; others are counted in `left_out` by reason. Throws Error where there is none, for
/// another ending of a file that is named, for token files beside others, and for a folder with a
/// training split and another one by the names of its files.
std::vector<DataFile> list_data_files(const SourceOptions& source,
                                      std::map<std::string, int64_t>* left_out);

/// Returns what a dataset_info.json of LLaMA-Factory says of the entry `name`, with the path of its
/// file. `path` is that file or its folder; any other source is returned as it is. Throws Error for
/// an entry that is absent, lies elsewhere, or has what is not read here (images, a sample).
SourceOptions resolve_dataset_info(const SourceOptions& source);

}  // namespace hocket::data
