// SPDX-License-Identifier: Apache-2.0
#include "rl/last_failure.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

namespace hocket::rl {

LastFailure::LastFailure(const std::string& folder) : path_(join_path(folder, "failed.json")) {
  if (!file_exists(path_)) return;
  try {
    const nlohmann::json json = read_json(path_);
    const JsonView in(json, path_);
    error_ = in.get_string("error");
    step_ = in.get_int("step");
  } catch (const Error& error) {
    log_warning("the last run's failure is not known: {}", error.what());
  }
}

std::string LastFailure::text(int64_t step) const {
  if (step_ < step) return "";
  return fmt::format("the last run into this folder failed in update {}: {}", step_ + 1, error_);
}

void LastFailure::keep(int64_t step, const std::string& error) {
  step_ = step;
  error_ = error;
  try {
    write_file_atomic(path_, nlohmann::ordered_json{{"step", step}, {"error", error}}.dump(
                                 2, ' ', false, nlohmann::json::error_handler_t::replace) +
                                 "\n");
  } catch (const Error& failure) {
    log_warning("the failure is not kept for the run that resumes: {}", failure.what());
  }
}

void LastFailure::passed(int64_t step) {
  if (step_ < 0 || step <= step_) return;
  step_ = -1;
  remove_file(path_);
}

}  // namespace hocket::rl
