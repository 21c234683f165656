// SPDX-License-Identifier: Apache-2.0
#include "train/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/file.h"
#include "checkpoint/adapter.h"
#include "checkpoint/resolve.h"
#include "checkpoint/safetensors.h"

namespace hocket::train {

namespace {

bool is_of_weights(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         name.ends_with(".gguf") || name == checkpoint::kConfigFile ||
         name == checkpoint::kAdapterConfigFile;
}

/// Adds the files of a folder, weights first, in the order of their names; or a file.
void add_files(const std::string& path, std::vector<std::string>* files) {
  std::vector<std::string> paths = {path};
  if (is_directory(path)) {
    paths.clear();
    for (const std::string& name : list_dir(path)) {
      if (is_of_weights(name)) {
        paths.push_back(join_path(path, name));
      }
    }
    std::sort(paths.begin(), paths.end());
    std::stable_partition(paths.begin(), paths.end(),
                          [](const std::string& file) { return !file.ends_with(".json"); });
  }
  for (const std::string& file : paths) {
    const auto time = std::filesystem::last_write_time(file).time_since_epoch();
    files->push_back(fmt::format("{} {} {}", file_size(file), time.count(), file_name(file)));
  }
}

}  // namespace

std::vector<std::string> weight_files(const std::string& weights, const std::string& adapter) {
  std::vector<std::string> files;
  if (!weights.empty()) {
    add_files(checkpoint::base_folder(weights), &files);
  }
  if (!adapter.empty()) {
    add_files(adapter, &files);
  }
  return files;
}

std::string changed_file(const std::vector<std::string>& before,
                         const std::vector<std::string>& now) {
  for (const auto& [files, others] : {std::pair(&now, &before), std::pair(&before, &now)}) {
    for (const std::string& file : *files) {
      if (std::find(others->begin(), others->end(), file) != others->end()) continue;
      const size_t time = file.find(' ') + 1;
      return file.substr(file.find(' ', time) + 1);
    }
  }
  return "";
}

}  // namespace hocket::train
