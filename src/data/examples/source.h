// SPDX-License-Identifier: Apache-2.0
// Files of fine-tuning data to examples, one at a time: JSON Lines, JSON arrays, text, Parquet,
// each also compressed, and Megatron's token files, in the column layouts of TRL, Axolotl and
// LLaMA-Factory (docs/data-formats.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/hash.h"
#include "data/examples/example.h"
#include "data/examples/options.h"

namespace hocket {
class JsonWriter;
}

namespace hocket::data {

/// Result of reading a source.
struct ReadReport {
  /// Most unreadable entries that are kept with their reasons.
  static constexpr size_t kNamed = 20;

  std::string format;  ///< a format of source_formats() but auto, or "tokens"
  std::string layout;  ///< for people: columns taken, "conversations (from, value), system"
  int64_t files = 0, examples = 0;
  int64_t unreadable = 0;
  std::vector<std::string> first_unreadable;       ///< "chat.jsonl:17: column ... is missing"
  std::map<std::string, int64_t> ignored_columns;  ///< columns not used, and in how many examples
  std::map<std::string, int64_t> left_out;         ///< files not taken, by reason

  /// Adds the keys to the object that is open.
  JsonWriter& put(JsonWriter& json) const;
};

/// Hands every example to `take`, in the order of the files (sorted) and of their lines, until
/// `take` returns false. The same files give the same examples. An example that cannot be used is
/// counted and named in the report. Throws Error for no files, damaged ones (cut off, no UTF-8
/// text, no array), and columns that fit no format. Unless `take` ended the reading, also throws if
/// more than the share `max_unreadable` of all examples is unreadable.
ReadReport read_source(const SourceOptions& options, const std::function<bool(Example&&)>& take);

/// Hands every object of a source to `take`, as its line has it, with its place ("tasks.jsonl:17").
/// The order is that of read_source(), and the end is where `take` returns false. An Error that
/// `take` throws counts the object as unreadable. Throws Error as read_source(), and for texts and
/// tokens, which have no columns.
ReadReport read_objects(
    const SourceOptions& options,
    const std::function<bool(nlohmann::ordered_json&& object, const std::string& place)>& take);

/// Returns the identity of an example's content: all but its place.
Hash128 content_hash(const Example& example);

/// Returns for each content whether it is held out for validation: by chance of `share`, a function
/// of content and seed alone. Equal contents are on one side. Each side has `least` or, of fewer
/// than twice as many, half of them, as far as equal contents allow, and one at least: the contents
/// nearest to the other side change over. Throws Error where all contents are equal. Share 0: none.
std::vector<bool> hold_out(const std::vector<Hash128>& contents, double share, uint64_t seed,
                           int64_t least = 1);

}  // namespace hocket::data
