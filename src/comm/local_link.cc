// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "base/stats.h"
#include "comm/communicator.h"
#include "comm/local.h"

namespace hocket::comm {

namespace {

/// Median time of one message of `bytes` from one thread to another.
double message_s(LocalWorld& world, int64_t bytes, int rounds) {
  // There and back: half of a round trip, as clocks of two ranks need not agree.
  const graph::TensorType type{graph::DType::f32, {bytes / 4}, 0};
  const program::Kind send = program::communication_kind(message(Role::send).id, {}, {type}, {});
  const program::Kind recv = program::communication_kind(message(Role::receive).id, {}, {}, {type});
  std::vector<float> here(static_cast<size_t>(bytes / 4));
  std::vector<float> there(here.size());
  const auto call = [](const program::Kind& kind, void* const* operand, int32_t peer) {
    Call call;
    call.kind = &kind;
    (kind.out.empty() ? call.in : call.out) = std::span<void* const>(operand, 1);
    call.peer = peer;
    call.tag = 0;
    return call;
  };
  void* mine = here.data();
  void* theirs = there.data();
  std::thread other([&] {
    for (int i = 0; i < rounds; ++i) {
      world.communicator(1).run(call(recv, &theirs, 0));
      world.communicator(1).run(call(send, &theirs, 0));
    }
  });
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    auto begin = std::chrono::steady_clock::now();
    world.communicator(0).run(call(send, &mine, 1));
    world.communicator(0).run(call(recv, &mine, 1));
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 2);
  }
  other.join();
  return median(times);
}

}  // namespace

LinkTimes time_local_link() {
  LocalWorld world(2, std::chrono::seconds(20));
  constexpr int64_t kLarge = 4 << 20;
  LinkTimes link;
  link.latency_s = message_s(world, 64, 200);
  link.bytes_per_s =
      static_cast<double>(kLarge) / std::max(1e-9, message_s(world, kLarge, 20) - link.latency_s);
  return link;
}

}  // namespace hocket::comm
