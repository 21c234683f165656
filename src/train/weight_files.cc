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
  if (name == checkpoint::kOptimizerFile) return false;
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

/// Returns the NAME of "SIZE TIME NAME".
std::string name_in(const std::string& file) {
  const size_t time = file.find(' ') + 1;
  return file.substr(file.find(' ', time) + 1);
}

/// Returns the first of `files` that is not in `others`; null: there is none.
const std::string* first_beyond(const std::vector<std::string>& files,
                                const std::vector<std::string>& others) {
  const auto found = std::find_if(files.begin(), files.end(), [&](const std::string& file) {
    return std::find(others.begin(), others.end(), file) == others.end();
  });
  return found == files.end() ? nullptr : &*found;
}

bool has_name(const std::vector<std::string>& files, const std::string& name) {
  return std::any_of(files.begin(), files.end(),
                     [&](const std::string& file) { return name_in(file) == name; });
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

std::string change_of_files(const std::vector<std::string>& before,
                            const std::vector<std::string>& now) {
  if (const std::string* const file = first_beyond(now, before)) {
    const std::string name = name_in(*file);
    return name + (has_name(before, name) ? " has another size or time than" : " was not there") +
           " when the training began";
  }
  if (const std::string* const file = first_beyond(before, now)) {
    return name_in(*file) + " is missing, which was there when the training began";
  }
  return "";
}

}  // namespace hocket::train
