// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl of a training as the columns of its report.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::rl {

/// Values of updates, or of evaluations, by name.
struct MetricColumns {
  std::vector<double> steps, times;                    ///< of every row; seconds of training
  std::vector<std::string> names;                      ///< as they first occur
  std::map<std::string, std::vector<double>> columns;  ///< not-a-number: a row without the value

  size_t rows() const { return steps.size(); }
  /// Returns a column; nullptr if there is none.
  const std::vector<double>* find(const std::string& name) const;
  /// Removes rows from a step on.
  void remove_from(double step);
};

struct MetricTable {
  MetricColumns updates, evaluations;
};

/// Reads the file; nothing of one that is not there. Lines that are no metrics are left out, such
/// as the one that a full disk cut off.
MetricTable read_metric_table(const std::string& path);

/// Returns at most `most` rows: means of equal pieces, at the step and time of their last row.
MetricColumns thinned(const MetricColumns& all, size_t most);

/// Returns the columns that the page draws, as JSON.
std::string curves_json(const MetricTable& table);

/// Returns one clause about a metric; empty: unknown.
std::string meaning_of(std::string_view name);

}  // namespace hocket::rl
