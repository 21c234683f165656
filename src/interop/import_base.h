// SPDX-License-Identifier: Apache-2.0
// Parts that importers of settings in a tree have in common.
#pragma once

#include <cstdint>
#include <string>

#include "interop/foreign.h"
#include "interop/settings.h"

namespace hocket::interop {

/// Throws Error if a file has several sequences in a micro-batch beside ranks of context
/// parallelism, since they mean another program there. `ranks` and `batch` are the names of these
/// settings.
void expect_one_sequence(const std::string& name, const std::string& trainer,
                         const std::string& ranks, const std::string& batch,
                         const Imported& imported, const Beside& beside);

class TreeImport {
 protected:
  TreeImport(Settings file, std::string name, const RanksOfFile& ranks, Beside beside);

  void set(const std::string& key, const std::string& value) { imported_.keys[key] = value; }
  void set(const std::string& key, int64_t value) { set(key, std::to_string(value)); }
  void set(const std::string& key, double value);
  void set(const std::string& key, bool value) { set(key, std::string(value ? "true" : "false")); }
  void note(std::string text) { imported_.notes.push_back(std::move(text)); }
  static std::string lower_of(std::string text);

  /// Sets the axes and `dp_`, from --ranks or `in_file` ranks (0: the file does not say). Throws
  /// Error if the ranks are no multiple of tp, pp and cp.
  void set_mesh(int64_t in_file);
  void expect_one_sequence(const std::string& ranks, const std::string& batch) const {
    interop::expect_one_sequence(name_, file_.tool(), ranks, batch, imported_, beside_);
  }
  /// Returns the import with lines for unread settings. Throws the Error of report_unread().
  Imported finish();

  Settings file_;
  std::string name_;
  RanksOfFile ranks_;
  Beside beside_;
  int64_t tp_ = 1, pp_ = 1, cp_ = 1, dp_ = 1;
  Imported imported_;
};

}  // namespace hocket::interop
