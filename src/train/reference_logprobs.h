// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of answers under the frozen reference, computed once and kept in a file: of
// every row of the data, whichever step reads it (preference.precompute_ref_log_probs).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::train {

/// Rows of a batch by their content.
struct RowNumbers {
  /// Returns the name of the same rows with other answers behind the prompts (kto).
  std::string mismatched() const { return table + " mismatched"; }

  std::string table;          ///< rows that are numbered together, with the identity of the data
  std::vector<int64_t> rows;  ///< of each row of the batch; -1: padding
};

class ReferenceLogprobs {
 public:
  /// `key`: identity of the reference; `per_row`: answers that a row has room for.
  ReferenceLogprobs(std::string key, int64_t per_row) : key_(std::move(key)), per_row_(per_row) {}

  /// Returns whether all rows of the batch are known.
  bool has(const std::string& table, const std::vector<int64_t>& rows) const;
  /// Keeps the values of a batch, [rows, per_row]; rows that are known keep theirs.
  void put(const std::string& table, const std::vector<int64_t>& rows,
           std::span<const double> values);
  /// Returns the values of a batch, [rows, per_row]; of padding zeros. Requires: has().
  std::vector<double> of(const std::string& table, const std::vector<int64_t>& rows) const;
  /// Drops the tables that are not among these. Returns whether some were dropped and some of these
  /// are unknown: then the values were of other rows.
  bool keep_only(const std::vector<std::string>& tables);
  /// Returns the number of rows of a table that are known.
  int64_t size(const std::string& table) const;

  /// Returns the content of a file.
  std::string to_bytes() const;
  /// Takes the rows of a file with the same key and room. False, and nothing is taken, for another
  /// one. Throws Error, naming `path`, for a damaged file.
  bool take(std::string_view bytes, const std::string& path);

 private:
  struct Table {
    std::map<int64_t, size_t> places;  ///< of rows in `values`, in units of per_row_
    std::vector<double> values;
  };
  const std::string key_;
  const int64_t per_row_;
  std::map<std::string, Table> tables_;
};

}  // namespace hocket::train
