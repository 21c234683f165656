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
      store_(std::make_shared<PersistentStore>(options_.device)),
      lanes_(std::make_shared<Lanes>(id, backend_, options_)),
      arena_(options_.device),
      inputs_outputs_(options_.device) {}

Rank::~Rank() {
  lanes_->end_threads();
  lanes_->set_on_error(nullptr);
  HOCKET_CHECK(programs_ == 0, "rank {} ends before {} of its programs", id_, programs_);
}

}  // namespace hocket::runtime
