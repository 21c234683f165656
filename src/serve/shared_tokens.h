// SPDX-License-Identifier: Apache-2.0
// Tokens that copies share: a prompt of many texts is in memory once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace hocket::serve {

class SharedTokens {
 public:
  SharedTokens() : SharedTokens(std::vector<int32_t>()) {}
  SharedTokens(std::vector<int32_t> ids)  // NOLINT: a list of tokens is one
      : ids_(std::make_shared<const std::vector<int32_t>>(std::move(ids))) {}
  SharedTokens(std::initializer_list<int32_t> ids) : SharedTokens(std::vector<int32_t>(ids)) {}

  const std::vector<int32_t>& ids() const { return *ids_; }
  operator const std::vector<int32_t>&() const { return *ids_; }  // NOLINT: as above
  auto begin() const { return ids_->begin(); }
  auto end() const { return ids_->end(); }
  size_t size() const { return ids_->size(); }
  bool empty() const { return ids_->empty(); }
  int32_t operator[](size_t i) const { return (*ids_)[i]; }

 private:
  std::shared_ptr<const std::vector<int32_t>> ids_;
};

}  // namespace hocket::serve
