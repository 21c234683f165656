// SPDX-License-Identifier: Apache-2.0
// Collectives of c10d's own, among the members of one of its groups. What NCCL moves is copied to
// the rank's GPU and back.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "comm/wire.h"

namespace hocket::comm {

/// How far a collective is. Known to Gloo, which may end it later than who waits for it.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false, stopped = false;
  std::string failed;
};

/// The collectives that somebody waits for: all of them are stopped together, and so is each that
/// begins later.
class UnderWay {
 public:
  void add(Progress* progress);
  void remove(Progress* progress);
  void stop();

 private:
  std::mutex mutex_;
  std::set<Progress*> all_;
  bool stopped_ = false;
};

/// The team of a group whose tensors lie on `device`: of Gloo on the CPU, of NCCL on a GPU. `all`
/// outlives it.
std::unique_ptr<Team> c10d_team(c10::intrusive_ptr<c10d::Backend> group, at::Device device,
                                UnderWay& all);

}  // namespace hocket::comm
