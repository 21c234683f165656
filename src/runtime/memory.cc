// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "program/memory.h"

namespace hocket::runtime {

std::vector<program::Range> Arena::used() const {
  std::vector<program::Range> all;
  for (const auto& [user, need] : users_) {
    all.insert(all.end(), need.used.begin(), need.used.end());
  }
  return program::joined(std::move(all));
}

void Arena::add(const void* user, int64_t bytes, std::vector<program::Range> used) {
  users_[user] = {bytes, std::move(used)};
  if (!memory_ || bytes > memory_->bytes()) {
    // The old memory is freed first, since there may not be room for both.
    memory_.reset();
    ++generation_;
    memory_ = device_->reserve(bytes);
  }
  for (const program::Range& range : this->used()) {
    memory_->commit(range);
  }
}

void Arena::remove(const void* user) {
  const std::vector<program::Range> before = used();
  if (users_.erase(user) == 0) return;
  if (users_.empty()) {
    memory_.reset();
    ++generation_;
    return;
  }
  for (const program::Range& range : program::without(before, used())) {
    memory_->decommit(range);
  }
}

std::shared_ptr<Device> device_of(program::Space space, const std::shared_ptr<Device>& device) {
  return space == program::Space::host ? cpu_device() : device;
}

std::shared_ptr<Device> device_of_lane(program::Lane lane, const std::shared_ptr<Device>& device) {
  return device_of(program::workspace_space(lane), device);
}

void PersistentStore::create(program::Space space,
                             const std::vector<const program::Buffer*>& buffers,
                             const program::Program& program) {
  constexpr int64_t kAligned = 64;
  int64_t bytes = 0;
  for (const program::Buffer* buffer : buffers) {
    bytes += round_up(buffer->type.bytes(), kAligned);
  }
  Memory& memory =
      *memories_[place_of(space)].emplace_back(device_of(space, device_)->reserve(bytes));
  int64_t offset = 0;
  for (const program::Buffer* buffer : buffers) {
    const int64_t end = offset + round_up(buffer->type.bytes(), kAligned);
    entries_.emplace(buffer->name, Entry{program::contents_of(*buffer, program, rank_),
                                         memory.data() + offset, false});
    offset = end;
  }
  // Only the rows in use of a tensor with symbolic dims are touched.
  if (std::ranges::none_of(buffers, [](const auto* b) { return b->type.symbolic(); })) {
    memory.commit({0, bytes});
  }
}

void PersistentStore::add(const program::Program& program) {
  std::array<std::vector<const program::Buffer*>, program::kNumSpaces> absent;
  for (const program::Buffer& buffer : program.classes[program.class_of(rank_)].buffers) {
    if (buffer.kind == program::BufferKind::persistent && !buffer.type.symbolic() &&
        !entries_.contains(buffer.name)) {
      absent[place_of(buffer.space)].push_back(&buffer);
    }
  }
  for (size_t space = 0; space < absent.size(); ++space) {
    if (!absent[space].empty()) {
      create(static_cast<program::Space>(space), absent[space], program);
    }
  }
}

PersistentStore::Entry& PersistentStore::get(const program::Buffer& buffer,
                                             const program::Program& program) {
  auto it = entries_.find(buffer.name);
  if (it == entries_.end()) {
    create(buffer.space, {&buffer}, program);
    return entries_.at(buffer.name);
  }
  const program::Contents contents = program::contents_of(buffer, program, rank_);
  const Entry& entry = it->second;
  if (entry.space != buffer.space) {
    fail_run("memory", "{} is in {} memory; the program expects it in {} memory", buffer.name,
             to_string(entry.space), to_string(buffer.space));
  }
  if (!program::have_same_elements(entry, contents)) {
    fail_run("memory", "{} is {} in memory; the program expects {}{}", buffer.name,
             to_string(entry.type), to_string(buffer.type),
             entry.type == buffer.type ? ", with another split or other slots" : "");
  }
  return it->second;
}

void PersistentStore::expect_same_layouts(const program::Program& program) const {
  std::map<std::string, std::string> home;  // by tensor: a buffer that holds it
  for (const auto& [name, entry] : entries_) {
    for (const std::string& tensor : program::tensors_of(name, entry.slots)) {
      home[tensor] = name;
    }
  }
  for (const program::Buffer& buffer : program.classes[program.class_of(rank_)].buffers) {
    if (buffer.kind != program::BufferKind::persistent) continue;
    if (entries_.contains(buffer.name)) continue;
    for (const std::string& tensor : program::tensors_of(buffer.name, buffer.slots)) {
      const auto known = home.find(tensor);
      if (known == home.end()) continue;
      fail_run("memory",
               "rank {} has {} in the buffer {}; the next program expects it in {}; try programs "
               "with equal layouts",
               rank_, tensor, known->second, buffer.name);
    }
  }
}

PersistentStore::Entry* PersistentStore::find(const std::string& name) {
  auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

int64_t PersistentStore::resident_bytes(program::Space space) const {
  int64_t bytes = 0;
  for (const std::unique_ptr<Memory>& memory : memories_[place_of(space)]) {
    bytes += memory->resident_bytes();
  }
  return bytes;
}

}  // namespace hocket::runtime
