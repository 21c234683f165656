// SPDX-License-Identifier: Apache-2.0
// A limit on the memory that requests hold together, from their first byte to their answer.
#pragma once

#include <atomic>
#include <cstdint>

namespace hocket::serve {

/// Functions may be called concurrently.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t bytes) : bytes_(bytes) {}
  int64_t bytes() const { return bytes_; }
  int64_t held() const { return held_; }

  /// Bytes that one request holds, given back at the end. Used by one thread at a time.
  class Share {
   public:
    explicit Share(ByteBudget* budget) : budget_(budget) {}  ///< null: there is no limit
    ~Share() { set(0); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    /// Holds so many bytes from now on; false, and nothing changes, where others leave too few.
    bool set(int64_t bytes) {
      if (budget_ == nullptr) return true;
      const int64_t more = bytes - mine_;
      if (budget_->held_.fetch_add(more) + more > budget_->bytes_ && more > 0) {
        budget_->held_ -= more;
        return false;
      }
      mine_ = bytes;
      return true;
    }

   private:
    ByteBudget* const budget_;
    int64_t mine_ = 0;
  };

 private:
  const int64_t bytes_;
  std::atomic<int64_t> held_{0};
};

}  // namespace hocket::serve
