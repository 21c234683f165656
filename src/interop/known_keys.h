// SPDX-License-Identifier: Apache-2.0
// Names of the settings of another trainer, over its releases, and the effect of those that an
// importer leaves out. No setting is ignored without a word: one that is not known is refused with
// the nearest name, and so is one that would make another model, plan or training.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hocket::interop {

enum class KeyEffect {
  read,     ///< the importer reads it where it counts
  none,     ///< nothing that a run has: listed
  differs,  ///< the run does something else in a detail: a note
  model,    ///< would make another model: refused, unless the run names its own
  plan,     ///< would make another plan: refused, unless a search replaces the plan
  training  ///< would make another training: refused
};

/// Settings of one effect. `names` are separated by blanks: "KEY", or "KEY=VALUE|VALUE" with values
/// that have no effect (so has none, null, false and 0 where `=` is there). A word "PREFIX:" goes
/// before all names behind it ("a.b:" before "c" is a.b.c, ":" ends it). "*" in a name stands for
/// one part between dots, "**" at its end for any number of them.
struct KeyGroup {
  KeyEffect effect = KeyEffect::none;
  const char* why = "";
  const char* names = "";
};

class KnownKeys {
 public:
  struct Key {
    KeyEffect effect = KeyEffect::none;
    const char* why = "";
    std::vector<std::string> neutral;

    bool is_neutral(std::string_view value) const;
  };

  explicit KnownKeys(std::span<const KeyGroup> groups);

  /// Returns a key; null: no release has it.
  const Key* find(std::string_view key) const;
  /// Returns whether a known key is below `section`.
  bool has_section(std::string_view section) const;
  /// The known name that is nearest to `key`: of the same section first, then the same name in
  /// another section, then by all letters. Empty: none is near.
  std::string nearest(std::string_view key) const;
  /// All names, sorted; of "a.**" a.
  std::vector<std::string> names() const;

 private:
  void add(const std::string& name, const KeyGroup& group, bool replaces);

  std::map<std::string, Key, std::less<>> keys_;
  std::vector<std::pair<std::vector<std::string>, Key>> patterns_;
};

/// The value as reports show it: passwords, keys and tokens of other services stay unsaid.
std::string shown_value(std::string_view key, std::string_view value);

/// "; try NAME", or nothing if no name is near.
std::string try_nearest(const KnownKeys& known, std::string_view key, std::string_view prefix = "");

/// Words of a caller beside another trainer's file.
struct Beside {
  std::set<std::string> keys;  ///< of --set
  bool keeps_plan = true;      ///< false: a search replaces the file's plan
  int64_t layers = 0;          ///< of the model that --set names; 0: not known

  bool has(const std::string& key) const { return keys.count(key) > 0; }
  /// Returns whether --set names the model.
  bool has_model() const;
};

/// Lines for settings that no reader used.
struct KeyReport {
  std::vector<std::string> ignored, notes;
};

/// Adds a line for a setting that is not read; `text` is the setting as in the file. Throws Error
/// with `where` for one that would make another model, plan or training. Requires: `key` is not
/// null.
void report_unread(const KnownKeys::Key& key, std::string_view value, const std::string& text,
                   const std::string& where, const Beside& beside, KeyReport* report);

}  // namespace hocket::interop
