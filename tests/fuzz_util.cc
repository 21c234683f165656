// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/error.h"

namespace hocket::test {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr double kLongest = 20;  // seconds for one input

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A value of the text, found by walking down from the root; null parent: the root.
struct JsonPosition {
  Json* parent = nullptr;
  std::string key;
  size_t index = 0;

  Json& value(Json& root) const {
    if (parent == nullptr) return root;
    return parent->is_object() ? (*parent)[key] : (*parent)[index];
  }
};

JsonPosition random_place(Json& root, Rng* rng) {
  JsonPosition place;
  Json* at = &root;
  while (at->is_structured() && !at->empty() && (place.parent == nullptr || rng->below(4) > 0)) {
    const size_t i = rng->below(at->size());
    place.parent = at;
    place.index = i;
    if (at->is_object()) {
      place.key = std::next(at->begin(), static_cast<std::ptrdiff_t>(i)).key();
      at = &(*at)[place.key];
    } else {
      at = &(*at)[i];
    }
  }
  return place;
}

Json drawn_value(Rng* rng) {
  static const std::vector<Json> kValues = {nullptr,
                                            true,
                                            false,
                                            0,
                                            1,
                                            -1,
                                            2,
                                            3,
                                            1 << 20,
                                            -(1 << 30),
                                            1LL << 40,
                                            INT64_MAX,
                                            0.5,
                                            -1e300,
                                            1e-300,
                                            "",
                                            "a",
                                            "\u2581",
                                            " ",
                                            "\xC3\xA9",
                                            "<0x41>",
                                            "(a+)+$",
                                            "\\s+",
                                            "[",
                                            "(?=a)",
                                            std::string(300, 'a'),
                                            Json::array(),
                                            Json::object(),
                                            Json::array({1, "a"}),
                                            Json::array({Json::array({"a", "b"})})};
  return kValues[rng->below(kValues.size())];
}

void change(Json& root, const std::vector<Json>& seeds, Rng* rng) {
  const JsonPosition place = random_place(root, rng);
  Json& value = place.value(root);
  switch (rng->below(6)) {
    case 0:
      if (place.parent != nullptr && place.parent->is_object()) {
        place.parent->erase(place.key);
      } else if (place.parent != nullptr) {
        place.parent->erase(place.index);
      }
      break;
    case 1:
      if (place.parent != nullptr && place.parent->is_array()) {
        const Json copy = value;
        place.parent->push_back(copy);
      } else {
        value = drawn_value(rng);
      }
      break;
    case 2: {
      // Parts of other texts have values that fit somewhere.
      Json other = seeds[rng->below(seeds.size())];
      const Json part = random_place(other, rng).value(other);
      value = part;
      break;
    }
    case 3:
      if (value.is_number_integer()) {
        value = value.get<int64_t>() / 2 + static_cast<int64_t>(rng->below(5)) - 2;
      } else if (value.is_string()) {
        std::string text = value.get<std::string>();
        text.insert(rng->below(text.size() + 1), 1, "a\n |(\\"[rng->below(6)]);
        value = text;
      } else if (value.is_boolean()) {
        value = !value.get<bool>();
      }
      break;
    default:
      value = drawn_value(rng);
  }
}

}  // namespace

void fuzz(double seconds, const std::function<std::string(Rng* rng)>& draw,
          const std::function<void(const std::string& input)>& read) {
  const char* limit = std::getenv("HOCKET_FUZZ_SECONDS");
  const char* given = std::getenv("HOCKET_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  seconds = limit != nullptr ? std::atof(limit) : seconds;
  std::cout << "HOCKET_SEED=" << seed << " HOCKET_FUZZ_SECONDS=" << seconds << "\n";
  Rng rng(seed);
  int64_t rounds = 0, good = 0;
  double longest = 0;
  for (const Clock::time_point began = Clock::now(); since(began) < seconds; ++rounds) {
    const std::string input = draw(&rng);
    const std::string_view shown = std::string_view(input).substr(0, 4000);
    const Clock::time_point start = Clock::now();
    try {
      read(input);
      ++good;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), Error::Kind::kInput)
          << "input " << rounds << ": " << error.what() << "\n"
          << shown;
    } catch (const std::exception& error) {
      FAIL() << "input " << rounds << ": " << error.what() << "\n" << shown;
    }
    longest = std::max(longest, since(start));
    ASSERT_LT(longest, kLongest) << "input " << rounds << " took too long:\n" << shown;
  }
  std::cout << rounds << " inputs, " << good << " of them read, at most " << longest << " s each\n";
  EXPECT_GT(good, 0);
  EXPECT_LT(good, rounds);
}

std::string mutated_json(const std::vector<Json>& seeds, Rng* rng) {
  Json json = seeds[rng->below(seeds.size())];
  for (uint64_t n = 1 + rng->below(4); n > 0; --n) {
    change(json, seeds, rng);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string mutated_bytes(std::string bytes, size_t head, Rng* rng) {
  for (uint64_t n = 1 + rng->below(4); n > 0; --n) {
    const size_t at = rng->below(std::max<size_t>(1, std::min(head, bytes.size())));
    const size_t length = std::min<size_t>(1 + rng->below(16), bytes.size() - at);
    switch (rng->below(5)) {
      case 0:
        bytes[at] = static_cast<char>(rng->below(256));
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] + 1);
        break;
      case 2: {
        const uint64_t large = rng->below(2) == 0 ? ~uint64_t{0} : uint64_t{1} << rng->below(64);
        std::memcpy(bytes.data() + at, &large, std::min(sizeof large, bytes.size() - at));
        break;
      }
      case 3:
        bytes.erase(at, length);
        break;
      default:
        bytes.insert(at, bytes.substr(rng->below(bytes.size()), length));
    }
    if (bytes.empty()) break;
  }
  return bytes;
}

}  // namespace hocket::test
