// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank.h"

#include <utility>

#include "base/error.h"

namespace hocket::runtime {

Rank::Rank(int32_t id, std::shared_ptr<kernels::Backend> backend, comm::Communicator* communicator,
           RankOptions options)
    : id_(id),
      backend_(std::move(backend)),
      communicator_(communicator),
      options_(std::move(options)),
      lanes_(std::make_shared<Lanes>(id, backend_, options_)),
      arenas_{Arenas(device_of(program::Space::device, options_.device)),
              Arenas(device_of(program::Space::host, options_.device))} {}

std::shared_ptr<PersistentStore> Rank::make_store() {
  std::erase_if(stores_, [](const auto& store) { return store.expired(); });
  auto store = std::make_shared<PersistentStore>(id_, options_.device);
  stores_.push_back(store);
  return store;
}

int64_t Rank::stores_resident_bytes(program::Space space) const {
  int64_t bytes = 0;
  for (const auto& weak : stores_) {
    if (const auto store = weak.lock()) {
      bytes += store->resident_bytes(space);
    }
  }
  return bytes;
}

int64_t Rank::arena_generation() const {
  int64_t generation = 0;
  for (const Arenas& arenas : arenas_) {
    generation += arenas.step.generation();
  }
  return generation;
}

int64_t Rank::inputs_outputs_generation() const {
  int64_t generation = 0;
  for (const Arenas& arenas : arenas_) {
    generation += arenas.inputs_outputs.generation();
  }
  return generation;
}

Rank::~Rank() {
  lanes_->end_threads();
  lanes_->set_on_error(nullptr);
  HOCKET_CHECK(programs_ == 0, "rank {} ends before {} of its programs", id_, programs_);
}

}  // namespace hocket::runtime
