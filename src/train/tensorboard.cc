// SPDX-License-Identifier: Apache-2.0
// A file is a row of records of TensorFlow (u64 length, its checksum, the bytes, their checksum),
// each an Event in the wire format of protocol buffers: wall time (1), step (2), and one of file
// version (3), summary (5), session log (7).
#include "train/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"

namespace hocket::train {

namespace {

std::string little_endian(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) {
    out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
  return out;
}

// Fields of a message: the number with the kind of its value, then that.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) {
    out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  }
  out.push_back(static_cast<char>(value));
  return out;
}
std::string integer_field(int number, uint64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(value);
}
std::string double_field(int number, double value) {
  return varint(static_cast<uint64_t>(number) << 3 | 1) +
         little_endian(std::bit_cast<uint64_t>(value), 8);
}
std::string float_field(int number, float value) {
  return varint(static_cast<uint64_t>(number) << 3 | 5) +
         little_endian(std::bit_cast<uint32_t>(value), 4);
}
std::string bytes_field(int number, const std::string& value) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(value.size()) + value;
}

/// Wall time and step, with which every event begins.
std::string event_at(int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return double_field(1, std::chrono::duration<double>(now).count()) +
         integer_field(2, static_cast<uint64_t>(step));
}

/// Returns whether a tag says where in the training a line stands.
bool is_position(const std::string& tag) {
  return tag == "step" || tag == "time_s" || tag == "tokens";
}

uint64_t masked(const std::string& bytes) {
  const uint32_t crc = crc32c(bytes);
  return static_cast<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8u);
}

}  // namespace

uint32_t crc32c(const std::string& bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < made.size(); ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) {
        made[i] = made[i] >> 1 ^ ((made[i] & 1) != 0 ? 0x82f63b78u : 0u);
      }
    }
    return made;
  }();
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

EventFile::EventFile(const std::string& folder, int64_t step) {
  constexpr int kFileVersion = 3, kSessionLog = 7, kStatus = 1, kStart = 1;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  path_ = join_path(folder, fmt::format("events.out.tfevents.{}.{}.{}", seconds.count(),
                                        host.data(), ::getpid()));
  write(event_at(0) + bytes_field(kFileVersion, "brain.Event:2"));
  write(event_at(step + 1) + bytes_field(kSessionLog, integer_field(kStatus, kStart)));
}

void EventFile::append(const std::string& line) {
  constexpr int kSummary = 5, kValue = 1, kTag = 1, kSimpleValue = 2;
  const nlohmann::json values = parse_json(line, path_);
  std::string summary;
  for (const auto& [tag, value] : values.items()) {
    if (!value.is_number() || is_position(tag)) continue;
    summary +=
        bytes_field(kValue, bytes_field(kTag, tag) + float_field(kSimpleValue, value.get<float>()));
  }
  write(event_at(values.at("step").get<int64_t>()) + bytes_field(kSummary, summary));
}

void EventFile::write(const std::string& event) {
  const std::string length = little_endian(event.size(), 8);
  FileWriter out(path_, FileWriter::Mode::append);
  out.write(length + little_endian(masked(length), 4) + event + little_endian(masked(event), 4));
  out.close();
}

}  // namespace hocket::train
