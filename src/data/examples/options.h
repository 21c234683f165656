// SPDX-License-Identifier: Apache-2.0
// Keys of run.yaml about fine-tuning data. In a header of its own, since a build for check and
// simulation reads run.yaml and has no other data code.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"

namespace hocket::data {

/// Part of a chat or an answer that the loss is of.
enum class TrainOn : uint8_t {
  assistant,  ///< every message of the assistant; of a prompt and its completion the completion
  last,       ///< the assistant's last message
  all         ///< every token; of a preference every token of the answers
};
inline std::span<const char* const> names_of(TrainOn) {
  static constexpr std::array<const char*, 3> names = {"assistant", "last", "all"};
  return names;
}

/// Fate of an example with more ids than a row has places.
enum class Truncate : uint8_t {
  keep_start,  ///< its end is cut off; of a pair, as much as makes both fit, of the longer first
  drop,        ///< it is left out
  refuse       ///< it is an error
};
inline std::span<const char* const> names_of(Truncate) {
  static constexpr std::array<const char*, 3> names = {"keep_start", "drop", "refuse"};
  return names;
}

/// Layouts of columns, in the order of Converter::Layout.
inline constexpr std::array<const char*, 7> kSourceLayouts = {
    "text", "chat", "completion", "preference", "unpaired", "alpaca", "sharegpt"};

/// Returns "auto" and the layouts.
inline std::vector<std::string> source_formats() {
  std::vector<std::string> names = {"auto"};
  names.insert(names.end(), kSourceLayouts.begin(), kSourceLayouts.end());
  return names;
}

/// One entry of `data.sources`, or of a set of `data.evaluation`.
struct SourceOptions {
  std::string path;             ///< file, folder (all below it) or glob
  std::string name;             ///< of reports; of a dataset_info.json the entry to read
  std::string format = "auto";  ///< a column layout (source_formats), or by the first object
  /// Share in a mixture of sources, relative to the others'; null, in all of them: every example
  /// once an epoch.
  std::optional<double> weight;
  std::string split = "auto";  ///< train, valid, or auto: by hold_out
  /// Names of columns in the files, by their standard names: {"prompt": "question"}.
  std::map<std::string, std::string> columns;
  /// Names of fields and roles in messages, as LLaMA-Factory's `tags`: {"user_tag": "human"}.
  std::map<std::string, std::string> tags;
  bool text_lines = false;       ///< of .txt: every line is an example; else the file is one
  double max_unreadable = 0.01;  ///< share of examples above which the source is refused
  int64_t max_example_bytes = int64_t{32} << 20;  ///< a longer line, entry or text is unreadable
  std::string key = "data.sources";  ///< the key of run.yaml that it stands under, for errors

  void fields(Fields& v) {
    v("path", path, "file, folder (all below it) or glob of examples").required();
    v("name", name, "name in reports; of a dataset_info.json the entry to read");
    v("format", format, "layout of the columns; auto: by the first example")
        .one_of(source_formats());
    v("weight", weight,
      "share of the rows, relative to the other sources' weights; 0: unused; without any weight "
      "every example is seen once an epoch")
        .min(0);
    v("split", split,
      "use of its examples: train, valid, or auto, by which a share of all is held out")
        .one_of({"auto", "train", "valid"});
    v("columns", columns, "names of its columns, by standard name: {prompt: question}");
    v("tags", tags, "names in its messages: {role_tag: from, content_tag: value, user_tag: human}");
    v("text_lines", text_lines, "read every line of a .txt file as an example, not the whole file");
    v("max_unreadable", max_unreadable, "share of unusable examples above which it is refused")
        .min(0)
        .max(1);
    v("max_example_bytes", max_example_bytes, "size above which an example is unreadable")
        .unit(Unit::bytes)
        .min(1);
  }
};

}  // namespace hocket::data
