// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/names.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace hocket::checkpoint {

namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemporary = ".hocket-tmp-";

bool is_alive(int64_t pid) {
  return pid > 0 && pid <= std::numeric_limits<pid_t>::max() && pid != ::getpid() &&
         (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
}

}  // namespace

std::string step_name(int64_t step) { return fmt::format("{}{:06}", kStep, step); }

int64_t step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return -1;
  const std::string_view digits = name.substr(kStep.size());
  int64_t step = -1;
  if (digits.empty() || digits[0] < '0' || digits[0] > '9' || !parse_int(digits, &step)) return -1;
  return step;
}

std::string temporary_name(const std::string& final_path, int64_t pid) {
  return fmt::format("{}{}{}", final_path, kTemporary, pid);
}

void remove_left_behind(const std::string& run_folder) {
  if (!is_directory(run_folder)) return;
  for (const std::string& name : list_dir(run_folder)) {
    const std::string path = join_path(run_folder, name);
    if (step_of(name) >= 0 && !is_directory(path)) {
      fail(path, "is {}; expected a checkpoint's folder; remove it",
           file_exists(path) ? "a file" : "a link to nothing");
    }
    if (name.starts_with(kMarkerPrefix)) {
      remove_file(path);
      continue;
    }
    const size_t mark = name.find(kTemporary);
    if (mark == name.npos || step_of(std::string_view(name).substr(0, mark)) < 0) continue;
    int64_t pid = 0;
    if (!parse_int(std::string_view(name).substr(mark + kTemporary.size()), &pid)) continue;
    if (!is_alive(pid)) {
      remove_tree(path);
    }
  }
}

}  // namespace hocket::checkpoint
