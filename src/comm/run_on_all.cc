// SPDX-License-Identifier: Apache-2.0
#include "comm/run_on_all.h"

#include <fmt/format.h>

#include <exception>

#include "base/error.h"

namespace hocket::comm {

namespace {

// Result kind, the first letter of a process's message. After it comes the result, or for an error
// `where`, a zero byte, and the text.
constexpr char kDone = 'd';
constexpr char kInput = 'i';
constexpr char kRun = 'r';

std::string failed(char kind, std::string_view where, std::string_view text,
                   const std::string& name) {
  std::string message(1, kind);
  message += where;
  message += '\0';
  message += name + ": ";
  message += text;
  return message;
}

}  // namespace

std::vector<std::string> run_on_all(Processes& processes,
                                    const std::function<std::string()>& work) {
  if (processes.size() == 1) return {work()};
  std::string mine;
  try {
    mine = kDone + work();
  } catch (const Error& error) {
    const char kind = error.kind() == Error::Kind::kInput ? kInput : kRun;
    mine = failed(kind, error.where(), error.text(), processes.name());
  } catch (const std::exception& error) {
    mine = failed(kRun, "process", error.what(), processes.name());
  }
  std::vector<std::string> all = processes.all_gather(mine);
  for (std::string& message : all) {
    if (message[0] != kDone) {
      const size_t end = message.find('\0');
      const std::string_view view = message;
      throw Error(message[0] == kInput ? Error::Kind::kInput : Error::Kind::kRun,
                  view.substr(1, end - 1), view.substr(end + 1));
    }
    message.erase(0, 1);
  }
  return all;
}

void expect_same(Processes& processes, std::string_view where, std::string_view what,
                 const std::string& mine) {
  const std::vector<std::string> all = processes.all_gather(mine);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != all[0]) {
      fail_run(where,
               "rank {} has {} {}; rank 0 has {}; expected the same on all ranks; try the same "
               "command, run.yaml, files and build of hocket everywhere",
               i, what, all[i], all[0]);
    }
  }
}

}  // namespace hocket::comm
