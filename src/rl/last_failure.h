// SPDX-License-Identifier: Apache-2.0
// The update at which a training by rewards failed, in its folder, for the run that resumes it.
#pragma once

#include <cstdint>
#include <string>

namespace hocket::rl {

class LastFailure {
 public:
  /// `folder`: output.dir. Requires: this process alone writes there.
  explicit LastFailure(const std::string& folder);

  /// Returns a line about the last run's failure, where this one, which begins after `step`
  /// updates, comes to that update; empty: it does not, or the last run did not fail.
  std::string text(int64_t step) const;
  /// Keeps that a run failed after `step` updates. Warns if that cannot be written.
  void keep(int64_t step, const std::string& error);
  /// Removes the failure once more updates are made than before it.
  void passed(int64_t step);

 private:
  const std::string path_;
  int64_t step_ = -1;  ///< updates that were made before; -1: no failure
  std::string error_;
};

}  // namespace hocket::rl
