// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/apart_device_util.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/math.h"

namespace hocket::fake {

class ApartMemory : public runtime::Memory {
 public:
  static std::unique_ptr<ApartMemory> map(ApartDevice& device, int64_t bytes) {
    const auto length = static_cast<size_t>(bytes);
    const int file = memfd_create("apart", MFD_CLOEXEC);
    HOCKET_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "no memory file");
    void* const outside = mmap(nullptr, length, PROT_NONE, MAP_SHARED, file, 0);
    void* const inside = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    HOCKET_CHECK(outside != MAP_FAILED && inside != MAP_FAILED, "can't map {} bytes", bytes);
    return std::unique_ptr<ApartMemory>(new ApartMemory(
        device, file, static_cast<std::byte*>(outside), static_cast<std::byte*>(inside), bytes));
  }
  ~ApartMemory() override {
    {
      std::lock_guard lock(device_.mutex_);
      device_.mapped_.erase(data());
    }
    munmap(data(), static_cast<size_t>(bytes()));
    munmap(inside_, static_cast<size_t>(bytes()));
    close(file_);
  }
  void commit(program::Range) override {}
  void decommit(program::Range range) override {
    const int64_t begin = round_up(range.begin, program::kPageBytes);
    const int64_t end = range.end / program::kPageBytes * program::kPageBytes;
    if (begin >= end) return;
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin);
  }
  int64_t resident_bytes() const override {
    const int64_t pages = ceil_div(bytes(), program::kPageBytes);
    std::vector<unsigned char> there(static_cast<size_t>(pages));
    mincore(inside_, static_cast<size_t>(bytes()), there.data());
    int64_t resident = 0;
    for (const unsigned char page : there) {
      resident += (page & 1) * program::kPageBytes;
    }
    return resident;
  }

 private:
  ApartMemory(ApartDevice& device, int file, std::byte* outside, std::byte* inside, int64_t bytes)
      : Memory(outside, bytes), device_(device), file_(file), inside_(inside) {
    std::lock_guard lock(device_.mutex_);
    device_.mapped_[outside] = {bytes, inside};
  }

  ApartDevice& device_;
  const int file_;
  std::byte* const inside_;
};

namespace {

/// Queue that runs kernels at once, on the inside mapping.
class ApartQueue : public runtime::Queue {
 public:
  ApartQueue(const ApartDevice& device, std::unique_ptr<runtime::Queue> queue)
      : device_(device), queue_(std::move(queue)) {}
  runtime::Progress::Wait wait(const runtime::Event& event,
                               std::chrono::milliseconds timeout) override {
    return queue_->wait(event, timeout);
  }
  void launch(kernels::KernelFn kernel, const kernels::KernelArgs& args,
              runtime::TaskTime* time) override {
    std::vector<kernels::TensorRef> in(args.in.begin(), args.in.end());
    std::vector<kernels::TensorRef> out(args.out.begin(), args.out.end());
    for (auto* operands : {&in, &out}) {
      for (kernels::TensorRef& operand : *operands) {
        operand.data = device_.inside(operand.data);
      }
    }
    kernels::KernelArgs inside = args;
    inside.in = in;
    inside.out = out;
    inside.workspace = device_.inside(args.workspace);
    queue_->launch(kernel, inside, time);
  }
  void record() override { queue_->record(); }
  void drain() override { queue_->drain(); }

 private:
  const ApartDevice& device_;
  const std::unique_ptr<runtime::Queue> queue_;
};

}  // namespace

std::unique_ptr<runtime::Memory> ApartDevice::reserve(int64_t bytes) {
  // An empty range has no addresses to map.
  if (bytes == 0) return runtime::cpu_device()->reserve(0);
  return ApartMemory::map(*this, bytes);
}

std::unique_ptr<runtime::Queue> ApartDevice::make_queue(runtime::Progress& progress,
                                                        runtime::Failed failed) {
  return std::make_unique<ApartQueue>(
      *this, runtime::cpu_device()->make_queue(progress, std::move(failed)));
}

void ApartDevice::copy(void* to, const void* from, int64_t bytes) const {
  std::memcpy(inside(to), inside(from), static_cast<size_t>(bytes));
  std::lock_guard lock(mutex_);
  copied_ += bytes;
}

std::byte* ApartDevice::inside(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  std::lock_guard lock(mutex_);
  auto next = mapped_.upper_bound(at);
  if (next != mapped_.begin()) {
    const auto& [begin, mapped] = *std::prev(next);
    if (at < begin + mapped.bytes) return mapped.inside + (at - begin);
  }
  return const_cast<std::byte*>(at);
}

int64_t ApartDevice::copied() const {
  std::lock_guard lock(mutex_);
  return copied_;
}

/// Forwards every call, also those by NextCall, with inside addresses.
class ApartWorld::Inside : public comm::Communicator {
 public:
  Inside(comm::Communicator& of, std::shared_ptr<const ApartDevice> device)
      : of_(of), device_(std::move(device)) {}
  void run(const comm::Call& call, const comm::NextCall&) override {
    std::vector<void*> in, out;
    for (void* operand : call.in) {
      in.push_back(device_->inside(operand));
    }
    for (void* operand : call.out) {
      out.push_back(device_->inside(operand));
    }
    comm::Call inside = call;
    inside.in = in;
    inside.out = out;
    of_.run(inside);
  }

 private:
  comm::Communicator& of_;
  const std::shared_ptr<const ApartDevice> device_;
};

ApartWorld::ApartWorld(int32_t ranks, std::chrono::milliseconds timeout,
                       std::shared_ptr<const ApartDevice> device)
    : world_(ranks, timeout) {
  for (int32_t rank = 0; rank < ranks; ++rank) {
    communicators_.push_back(std::make_shared<Inside>(world_.communicator(rank), device));
  }
}

comm::Communicator& ApartWorld::communicator(int32_t rank) {
  return *communicators_[static_cast<size_t>(rank)];
}

}  // namespace hocket::fake
