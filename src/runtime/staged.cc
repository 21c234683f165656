// SPDX-License-Identifier: Apache-2.0
#include "runtime/staged.h"

#include <algorithm>
#include <map>
#include <vector>

namespace hocket::runtime {

void StagedCommunicator::run(const comm::Call& call, const comm::NextCall& /*next*/) {
  // Outputs come along, too: of some the call writes only a part.
  std::map<void*, std::vector<std::byte>> copies;  // by the address on the device
  const auto size = [&](void* operand, const graph::TensorType& type) {
    std::vector<std::byte>& copy = copies[operand];
    copy.resize(std::max(copy.size(), static_cast<size_t>(type.bytes())));
  };
  for (size_t i = 0; i < call.in.size(); ++i) {
    size(call.in[i], call.kind->in[i]);
  }
  for (size_t i = 0; i < call.out.size(); ++i) {
    size(call.out[i], call.kind->out[i]);
  }
  for (auto& [operand, copy] : copies) {
    device_->copy(copy.data(), operand, std::ssize(copy));
  }
  std::vector<void*> in, out;
  for (void* operand : call.in) {
    in.push_back(copies[operand].data());
  }
  for (void* operand : call.out) {
    out.push_back(copies[operand].data());
  }
  comm::Call here = call;
  here.in = in;
  here.out = out;
  of_.run(here);
  for (size_t i = 0; i < call.out.size(); ++i) {
    device_->copy(call.out[i], out[i], call.kind->out[i].bytes());
  }
}

}  // namespace hocket::runtime
