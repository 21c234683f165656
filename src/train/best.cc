// SPDX-License-Identifier: Apache-2.0
#include "train/best.h"

#include "base/file.h"
#include "base/json_writer.h"

namespace hocket::train {

bool Best::take(int64_t at, double value, double min_delta) {
  worse = value < loss - min_delta || (step == 0 && value < loss) ? 0 : worse + 1;
  if (!(value < loss)) return false;
  step = at;
  loss = value;
  return true;
}

Best continued(const Best& before, const std::string& set, const std::string& rows) {
  const bool compares = before.set == set && (before.rows.empty() || before.rows == rows);
  Best best = compares ? before : Best();
  best.set = set;
  best.rows = rows;
  return best;
}

void write_best(const std::string& path, const Best& best, const std::string& checkpoint) {
  const std::string tag = best.set.empty() ? "eval/loss" : "eval/" + best.set + "/loss";
  write_file_atomic(path, JsonWriter()
                                  .object()
                                  .member("step", best.step)
                                  .member(tag, best.loss)
                                  .member("checkpoint", checkpoint)
                                  .end()
                                  .take() +
                              "\n");
}

}  // namespace hocket::train
