// SPDX-License-Identifier: Apache-2.0
// Local transport on 1 to 5 ranks compared with naive results, and its failures: mismatches,
// timeouts, aborts. SoloCommunicator: one rank with emulated peers.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "comm/communicator.h"
#include "comm/link_times.h"
#include "comm/solo.h"
#include "tests/comm/comm_util.h"

namespace hocket::comm {
namespace {

using graph::DType;
using graph::TensorType;
using std::chrono::milliseconds;

using test::Bytes;
using test::random_tensor;
using test::slice;
using test::sum;

/// One rank's side of a call: the kind, and memory for its operands.
struct Side {
  program::Kind kind;
  std::vector<Bytes> in, out;
  std::vector<int32_t> members;
  bool inplace = false;
  program::Lane lane = program::Lane::intra;
  int32_t peer = -1, tag = -1;
  std::vector<void*> p_in, p_out;
  Call call;
  std::string error;

  void prepare() {
    kind.communication = find(kind.op);
    if (!inplace) {
      out.clear();
      for (const TensorType& t : kind.out) {
        out.push_back(Bytes(static_cast<size_t>(t.bytes())));
      }
    }
    p_in.clear(), p_out.clear();
    for (Bytes& b : in) {
      p_in.push_back(b.data());
    }
    for (Bytes& b : inplace ? in : out) {
      p_out.push_back(b.data());
    }
    call = {.kind = &kind,
            .in = p_in,
            .out = p_out,
            .members = members,
            .lane = lane,
            .peer = peer,
            .tag = tag};
  }
  const Bytes& result(size_t i) const { return inplace ? in[i] : out[i]; }
};

/// Runs every rank's calls on its own thread, and stores errors in the sides.
void run_all(LocalWorld& world, std::vector<Side>& sides) {
  for (Side& s : sides) {
    s.prepare();
  }
  std::vector<std::thread> threads;
  for (size_t r = 0; r < sides.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        world.communicator(static_cast<int32_t>(r)).run(sides[r].call);
      } catch (const Error& e) {
        sides[r].error = e.what();
      }
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
}

void expect_no_errors(const std::vector<Side>& sides) {
  for (const Side& s : sides) {
    ASSERT_EQ(s.error, "");
  }
}

std::vector<int32_t> ranks(int n) {
  std::vector<int32_t> list(static_cast<size_t>(n));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::i32, DType::i64};

TEST(LocalComm, AllReduceSumsInRankOrder) {
  Rng rng(1);
  for (int n = 1; n <= 5; ++n) {
    for (int round = 0; round < 12; ++round) {
      LocalWorld world(n, milliseconds(20'000));
      std::vector<Side> sides(static_cast<size_t>(n));
      const bool inplace = round % 2;
      std::vector<TensorType> types;
      for (uint64_t k = 1 + rng.below(4); k > 0; --k) {  // coalesced, of mixed types and sizes
        types.push_back({kTypes[rng.below(4)], {rng.between(1, round < 6 ? 8 : 3000)}});
      }
      std::vector<std::vector<Bytes>> given;
      for (Side& s : sides) {
        s.kind.op = "all_reduce";
        s.kind.in = s.kind.out = types;
        s.members = ranks(n);
        s.inplace = inplace;
        for (const TensorType& t : types) {
          s.in.push_back(random_tensor(t, rng));
        }
        given.push_back(s.in);
      }
      SCOPED_TRACE(testing::Message() << n << " ranks, round " << round);
      std::vector<Bytes> first;
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (size_t r = 0; r < sides.size(); ++r) {
          sides[r].in = given[r];
        }
        run_all(world, sides);
        expect_no_errors(sides);
        for (size_t t = 0; t < types.size(); ++t) {
          std::vector<const Bytes*> parts;
          for (const auto& g : given) {
            parts.push_back(&g[t]);
          }
          const Bytes want = sum(parts, types[t].dtype);
          for (const Side& s : sides) {
            ASSERT_EQ(s.result(t), want) << "tensor " << t;
          }
          for (size_t r = 0; r < sides.size() && !inplace; ++r) {
            ASSERT_EQ(sides[r].in[t], given[r][t]);
          }
        }
      }
    }
  }
}

TEST(LocalComm, GroupsOfOneWorldAreIndependent) {
  Rng rng(2);
  LocalWorld world(4, milliseconds(20'000));
  const TensorType type{DType::f64, {33}};
  for (int round = 0; round < 20; ++round) {
    std::vector<Side> sides(4);
    std::vector<Bytes> given;
    for (int r = 0; r < 4; ++r) {
      Side& s = sides[r];
      s.kind.op = "all_reduce";
      s.kind.in = s.kind.out = {type};
      s.members = {r % 2, r % 2 + 2};
      s.in = {random_tensor(type, rng)};
      given.push_back(s.in[0]);
    }
    run_all(world, sides);
    expect_no_errors(sides);
    for (size_t r = 0; r < 4; ++r) {
      ASSERT_EQ(sides[r].out[0], sum({&given[r % 2], &given[r % 2 + 2]}, type.dtype));
    }
  }
}

TEST(LocalComm, AllGatherAndReduceScatterWorkAlongAnyDim) {
  Rng rng(3);
  for (int n = 1; n <= 5; ++n) {
    for (int round = 0; round < 12; ++round) {
      const DType dtype = kTypes[round % 4];
      TensorType part{dtype, {}};
      for (uint64_t d = 1 + rng.below(3); d > 0; --d) {
        part.dims.push_back(rng.between(1, 7));
      }
      const auto dim = static_cast<int64_t>(rng.below(part.dims.size()));
      TensorType whole = part;
      whole.dims[dim] *= n;
      SCOPED_TRACE(testing::Message()
                   << n << " ranks, " << graph::to_string(part) << " dim " << dim);
      LocalWorld world(n, milliseconds(20'000));
      std::vector<Side> gather(static_cast<size_t>(n)), scatter(static_cast<size_t>(n));
      Bytes want(static_cast<size_t>(whole.bytes()));
      std::vector<const Bytes*> terms;
      for (int i = 0; i < n; ++i) {
        Side &g = gather[i], &s = scatter[i];
        g.kind.op = "all_gather", s.kind.op = "reduce_scatter";
        g.kind.attrs = s.kind.attrs = {{"dim", dim}};
        g.members = s.members = ranks(n);
        g.kind.in = s.kind.out = {part};
        g.kind.out = s.kind.in = {whole};
        g.in = {random_tensor(part, rng)};
        s.in = {random_tensor(whole, rng)};
        slice(part, dim, n, i, want, g.in[0], false);
        terms.push_back(&s.in[0]);
      }
      run_all(world, gather);
      expect_no_errors(gather);
      for (const Side& g : gather) {
        ASSERT_EQ(g.out[0], want);
      }
      Bytes total = sum(terms, dtype);
      run_all(world, scatter);
      expect_no_errors(scatter);
      for (int i = 0; i < n; ++i) {
        Bytes piece(static_cast<size_t>(part.bytes()));
        slice(part, dim, n, i, total, piece, true);
        ASSERT_EQ(scatter[i].out[0], piece);
      }
    }
  }
}

/// Rows of one rank: counts per expert, and rows that encode their origin.
struct Routed {
  std::vector<int64_t> counts;
  std::vector<double> rows;  // row_size each
};

template <typename T>
Bytes bytes_of(const std::vector<T>& v) {
  Bytes b(v.size() * sizeof(T));
  if (!v.empty()) {
    std::memcpy(b.data(), v.data(), b.size());
  }
  return b;
}
template <typename T>
std::vector<T> values_of(const Bytes& b) {
  std::vector<T> v(b.size() / sizeof(T));
  if (!v.empty()) {
    std::memcpy(v.data(), b.data(), b.size());
  }
  return v;
}

TEST(LocalComm, AllToAllSendsRowsToTheirExpertsAndBack) {
  Rng rng(4);
  for (int n = 1; n <= 5; ++n) {
    for (int round = 0; round < 20; ++round) {
      const int64_t local = rng.between(1, 3), experts = n * local, tokens = rng.between(1, 9);
      const auto k = static_cast<int32_t>(rng.between(1, std::min<int64_t>(experts, 3)));
      const bool two_dims = rng.below(2);
      TensorType there{DType::f64, {experts, tokens, 3}, k};
      if (two_dims) {
        there.dims = {experts, tokens, 2, 2};
      }
      TensorType back = there;
      back.dims[0] = local, back.dims[1] = tokens * n;
      const int64_t row = there.row_size();
      // Some experts get nothing, some ranks have no tokens at all, some experts get everything.
      std::vector<Routed> given(static_cast<size_t>(n));
      for (int s = 0; s < n; ++s) {
        Routed& g = given[s];
        g.counts.assign(static_cast<size_t>(experts), 0);
        const bool empty = rng.below(4) == 0, one = rng.below(4) == 0;
        for (int64_t t = 0; t < tokens && !empty; ++t) {
          std::vector<int64_t> chosen(static_cast<size_t>(experts));
          std::iota(chosen.begin(), chosen.end(), 0);
          if (!one) {
            rng.shuffle(chosen);
          }
          for (int32_t i = 0; i < k; ++i) {
            ++g.counts[chosen[i]];
          }
        }
        const int64_t rows = std::accumulate(g.counts.begin(), g.counts.end(), int64_t{0});
        for (int64_t i = 0; i < rows * row; ++i) {
          g.rows.push_back(1e6 * s + static_cast<double>(i));
        }
      }
      SCOPED_TRACE(testing::Message()
                   << n << " ranks, round " << round << ", " << graph::to_string(there));
      LocalWorld world(n, milliseconds(20'000));
      std::vector<Side> sizes(static_cast<size_t>(n)), forth(static_cast<size_t>(n)),
          home(static_cast<size_t>(n));
      for (int r = 0; r < n; ++r) {
        Side& s = sizes[r];
        s.kind.op = "size_exchange";
        s.kind.in = {{DType::i64, {experts}}};
        s.kind.out = {{DType::i64, {n, experts}}, {DType::i64, {local}}};
        s.in = {bytes_of(given[r].counts)};
        s.members = ranks(n);
      }
      run_all(world, sizes);
      expect_no_errors(sizes);
      for (int r = 0; r < n; ++r) {
        const auto all = values_of<int64_t>(sizes[r].out[0]);
        const auto mine = values_of<int64_t>(sizes[r].out[1]);
        for (int s = 0; s < n; ++s) {
          for (int64_t e = 0; e < experts; ++e) {
            ASSERT_EQ(all[s * experts + e], given[s].counts[e]);
          }
        }
        for (int64_t e = 0; e < local; ++e) {
          int64_t want = 0;
          for (const Routed& g : given) {
            want += g.counts[r * local + e];
          }
          ASSERT_EQ(mine[e], want);
        }
      }
      for (int r = 0; r < n; ++r) {
        Side& f = forth[r];
        f.kind.op = "all_to_all";
        f.kind.attrs = {{"from", int64_t{1}}, {"to", int64_t{0}}};
        f.kind.in = {there, {DType::i64, {n, experts}}};
        f.kind.out = {back};
        f.members = ranks(n);
        f.in = {bytes_of(given[r].rows), sizes[r].out[0]};
        f.in[0].resize(static_cast<size_t>(there.bytes()));
      }
      run_all(world, forth);
      expect_no_errors(forth);
      for (int r = 0; r < n; ++r) {
        // Rows of this rank's experts from every source, in (expert, source) order.
        std::vector<double> want;
        for (int64_t e = r * local; e < (r + 1) * local; ++e) {
          for (const Routed& g : given) {
            const int64_t begin =
                std::accumulate(g.counts.begin(), g.counts.begin() + e, int64_t{0}) * row;
            const int64_t count = g.counts[e] * row;
            want.insert(want.end(), g.rows.begin() + begin, g.rows.begin() + begin + count);
          }
        }
        auto got = values_of<double>(forth[r].out[0]);
        ASSERT_LE(want.size(), got.size());
        got.resize(want.size());
        ASSERT_EQ(got, want) << "rank " << r;
        Side& h = home[r];
        h.kind = forth[r].kind;
        h.kind.attrs = {{"from", int64_t{0}}, {"to", int64_t{1}}};
        std::swap(h.kind.in[0], h.kind.out[0]);
        h.members = ranks(n);
        h.in = {forth[r].out[0], sizes[r].out[0]};
      }
      run_all(world, home);
      expect_no_errors(home);
      for (int r = 0; r < n; ++r) {
        auto got = values_of<double>(home[r].out[0]);
        got.resize(given[r].rows.size());
        ASSERT_EQ(got, given[r].rows) << "rank " << r;
      }
    }
  }
}

TEST(LocalComm, AllToAllRefusesMoreRowsThanItsBuffer) {
  LocalWorld world(2, milliseconds(300));
  std::vector<Side> sides(2);
  const std::vector<int64_t> sizes{4, 0, 4, 0};  // all eight rows to rank 0, which has room for 4
  for (int r = 0; r < 2; ++r) {
    Side& s = sides[r];
    s.kind.op = "all_to_all";
    s.kind.attrs = {{"from", int64_t{1}}, {"to", int64_t{0}}};
    s.kind.in = {{DType::f32, {2, 4, 1}, 1}, {DType::i64, {2, 2}}};
    s.kind.out = {{DType::f32, {1, 4, 1}, 1}};
    s.members = {0, 1};
    s.in = {Bytes(16), bytes_of(sizes)};
  }
  run_all(world, sides);
  EXPECT_NE(sides[0].error.find("received more rows than the 4 rows"), std::string::npos)
      << sides[0].error;
}

Side message(const char* op, const TensorType& type, int32_t peer, int32_t tag, Bytes data = {}) {
  Side s;
  s.kind.op = op;
  (std::string(op) == "send" ? s.kind.in : s.kind.out) = {type};
  s.peer = peer, s.tag = tag;
  if (std::string(op) == "send") {
    s.in = {std::move(data)};
  }
  s.prepare();
  return s;
}

std::string error_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 1);
    return e.what();
  }
  return "";
}

TEST(LocalComm, PeakOfMessagesIsAMaximum) {
  Rng rng(6);
  LocalWorld world(2, milliseconds(20'000));
  const TensorType large{DType::f32, {100}}, small{DType::f32, {10}};
  const auto send = [&](const TensorType& type) {
    Side side = message("send", type, 1, 0, random_tensor(type, rng));
    side.prepare();
    world.communicator(0).run(side.call);
  };
  const auto receive = [&](const TensorType& type) {
    Side side = message("recv", type, 0, 0);
    side.prepare();
    world.communicator(1).run(side.call);
  };
  send(large);
  send(large);
  receive(large);
  receive(large);
  send(small);
  receive(small);
  EXPECT_EQ(world.peak_message_bytes(0), 800);
}

TEST(LocalComm, MessagesKeepTheirOrderPerTag) {
  Rng rng(5);
  LocalWorld world(2, milliseconds(20'000));
  const TensorType type{DType::f32, {100}};
  std::vector<Bytes> sent;
  for (int i = 0; i < 60; ++i) {
    sent.push_back(random_tensor(type, rng));
  }
  std::thread sender([&] {
    for (int i = 0; i < 60; ++i) {
      Side s = message("send", type, 1, i % 3, sent[i]);
      s.prepare();
      world.communicator(0).run(s.call);
    }
  });
  // Tags are received in another order than sent.
  for (int tag : {2, 0, 1}) {
    for (int i = tag; i < 60; i += 3) {
      Side r = message("recv", type, 0, tag);
      r.prepare();
      world.communicator(1).run(r.call);
      ASSERT_EQ(r.out[0], sent[i]) << "tag " << tag << " message " << i;
    }
  }
  sender.join();
  EXPECT_LE(world.peak_message_bytes(0), 60 * 400);
  EXPECT_GE(world.peak_message_bytes(0), 400);
  EXPECT_EQ(world.peak_message_bytes(1), 0);
}

TEST(LocalComm, FailsWithAReason) {
  LocalWorld world(2, milliseconds(150));
  Side nothing = message("recv", {DType::f32, {4}}, 0, 9);
  nothing.prepare();
  EXPECT_NE(error_of([&] {
              world.communicator(1).run(nothing.call);
            }).find("nothing from rank 0 within 0.15 s"),
            std::string::npos);
  Side s = message("send", {DType::f32, {4}}, 1, 9, Bytes(16));
  s.prepare();
  world.communicator(0).run(s.call);
  Side wide = message("recv", {DType::f32, {8}}, 0, 9);
  wide.prepare();
  EXPECT_NE(
      error_of([&] { world.communicator(1).run(wide.call); }).find("sent 16 bytes; expected 32"),
      std::string::npos);
  std::vector<Side> alone(1);
  alone[0].kind.op = "all_reduce";
  alone[0].kind.in = alone[0].kind.out = {{DType::f32, {4}}};
  alone[0].in = {Bytes(16)};
  alone[0].members = {0, 1};
  run_all(world, alone);
  EXPECT_NE(alone[0].error.find(": 1 of 2 ranks arrived within 0.15 s"), std::string::npos)
      << alone[0].error;
}

TEST(LocalComm, RefusesMismatchedCalls) {
  auto errors = [](const std::function<void(Side&)>& spoil) {
    LocalWorld world(2, milliseconds(5'000));
    std::vector<Side> sides(2);
    for (Side& s : sides) {
      s.kind.op = "all_reduce";
      s.kind.in = s.kind.out = {{DType::f32, {6}}};
      s.members = {0, 1};
      s.in = {Bytes(24)};
    }
    spoil(sides[1]);
    run_all(world, sides);
    return std::pair(sides[0].error, sides[1].error);
  };
  EXPECT_EQ(errors([](Side&) {}), std::pair(std::string(), std::string()));
  auto [a, b] = errors([](Side& s) {
    s.kind.op = "all_gather";
    s.kind.attrs = {{"dim", int64_t{0}}};
    s.kind.out = {{DType::f32, {12}}};
  });
  EXPECT_NE(a.find("all_gather"), std::string::npos) << a;
  EXPECT_NE(b.find("all_reduce"), std::string::npos) << b;
  // The same op on other tensors: reading them would leave their memory.
  for (const TensorType& other : {TensorType{DType::f32, {5}}, TensorType{DType::i32, {6}}}) {
    auto [c, d] = errors([&](Side& s) {
      s.kind.in = s.kind.out = {other};
      s.in = {Bytes(static_cast<size_t>(other.bytes()))};
    });
    EXPECT_NE(c.find(graph::to_string(other)), std::string::npos) << c;
    EXPECT_NE(d.find("f32[6]"), std::string::npos) << d;
  }
  auto [e, f] = errors([](Side& s) {
    s.kind.in.push_back({DType::f32, {1}}), s.kind.out = s.kind.in;
    s.in.push_back(Bytes(4));
  });
  EXPECT_NE(e, "");
  EXPECT_NE(f, "");
}

// With two lanes, the lanes of a rank could be matched with each other.
TEST(LocalComm, CollectivesOfAGroupUseOneLane) {
  LocalWorld world(3, milliseconds(20'000));
  auto side = [](std::vector<int32_t> members, program::Lane lane) {
    Side s;
    s.kind.op = "all_reduce";
    s.kind.in = s.kind.out = {{DType::f32, {4}}};
    s.in = {Bytes(16)};
    s.members = std::move(members);
    s.lane = lane;
    return s;
  };
  std::vector<Side> sides{side({0, 1}, program::Lane::intra), side({0, 1}, program::Lane::intra)};
  run_all(world, sides);
  expect_no_errors(sides);
  Side other = side({0, 1}, program::Lane::inter);
  other.prepare();
  const std::string why = error_of([&] { world.communicator(0).run(other.call); });
  EXPECT_NE(why.find("used lane inter for a collective of ranks 0,1"), std::string::npos) << why;
  // Another set of ranks may meet in another lane.
  std::vector<Side> three(3, side({0, 1, 2}, program::Lane::inter));
  run_all(world, three);
  expect_no_errors(three);
}

TEST(LocalComm, AnAbortWakesAllRanks) {
  LocalWorld world(5, milliseconds(60'000));
  std::vector<Side> sides;
  for (int r = 0; r < 4; ++r) {  // rank 4 never comes
    if (r < 2) {
      sides.push_back({});
      sides.back().kind.op = "all_reduce";
      sides.back().kind.in = sides.back().kind.out = {{DType::f32, {4}}};
      sides.back().in = {Bytes(16)};
      sides.back().members = {0, 1, 4};
    } else {
      sides.push_back(message("recv", {DType::f32, {4}}, 4, r));
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  std::thread breaker([&] {
    std::this_thread::sleep_for(milliseconds(100));
    world.abort("rank 4 fell over");
  });
  run_all(world, sides);
  breaker.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (const Side& s : sides) {
    EXPECT_NE(s.error.find("stopped: rank 4 fell over"), std::string::npos) << s.error;
  }
  // Later calls fail at once, with the first reason.
  world.abort("something else");
  Side late = message("send", {DType::f32, {4}}, 0, 0, Bytes(16));
  late.prepare();
  EXPECT_NE(error_of([&] { world.communicator(4).run(late.call); }).find("rank 4 fell over"),
            std::string::npos);
}

TEST(LocalComm, LinkTimesAreSane) {
  const Work work = [] { std::this_thread::sleep_for(std::chrono::microseconds(100)); };
  const LinkTimes t = time_local_link([&] { return work; }, 10);
  for (const double latency : {t.latency_s, t.collective_latency_s}) {
    EXPECT_GT(latency, 0);
    EXPECT_LT(latency, 1);
  }
  EXPECT_GT(t.bytes_per_s, 1e6);
  EXPECT_GT(t.collective_bytes_per_s, 1e6);
  EXPECT_GE(t.compute_slowdown, 1);
  EXPECT_GE(t.collective_slowdown, 1);
}

TEST(SoloComm, KeepsCountsValid) {
  Rng rng(6);
  for (int round = 0; round < 60; ++round) {
    const int64_t n = rng.between(1, 4), local = rng.between(1, 3), experts = n * local;
    const int64_t tokens = rng.between(1, 6);
    const auto k = static_cast<int32_t>(rng.between(1, std::min<int64_t>(experts, 3)));
    const auto me = static_cast<int32_t>(rng.below(static_cast<uint64_t>(n)));
    SoloCommunicator solo(me);
    std::vector<int64_t> counts(static_cast<size_t>(experts), 0);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int64_t> chosen(static_cast<size_t>(experts));
      std::iota(chosen.begin(), chosen.end(), 0);
      rng.shuffle(chosen);
      for (int32_t i = 0; i < k; ++i) {
        ++counts[chosen[i]];
      }
    }
    Side sizes;
    sizes.kind.op = "size_exchange";
    sizes.kind.in = {{DType::i64, {experts}}};
    sizes.kind.out = {{DType::i64, {n, experts}}, {DType::i64, {local}}};
    sizes.in = {bytes_of(counts)};
    sizes.members = ranks(static_cast<int>(n));
    sizes.prepare();
    solo.run(sizes.call);
    const auto all = values_of<int64_t>(sizes.out[0]), mine = values_of<int64_t>(sizes.out[1]);
    for (int64_t s = 0; s < n; ++s) {
      for (int64_t e = 0; e < experts; ++e) {
        ASSERT_EQ(all[s * experts + e], counts[e]);
      }
    }
    int64_t rows_here = 0;
    for (int64_t e = 0; e < local; ++e) {
      ASSERT_EQ(mine[e], n * counts[me * local + e]);
      rows_here += mine[e];
    }
    // Rows are marked with their expert; the memory beyond them holds -1.
    TensorType there{DType::f32, {experts, tokens, 1}, k},
        back{DType::f32, {local, tokens * n, 1}, k};
    std::vector<float> rows;
    for (int64_t e = 0; e < experts; ++e) {
      rows.insert(rows.end(), static_cast<size_t>(counts[e]), static_cast<float>(e));
    }
    Side forth;
    forth.kind.op = "all_to_all";
    forth.kind.attrs = {{"from", int64_t{1}}, {"to", int64_t{0}}};
    forth.kind.in = {there, {DType::i64, {n, experts}}};
    forth.kind.out = {back};
    forth.members = sizes.members;
    forth.in = {bytes_of(rows), sizes.out[0]};
    ASSERT_LE(rows_here, back.max_rows());
    forth.prepare();
    std::vector<float> untouched(static_cast<size_t>(back.numel()), -1);
    forth.out[0] = bytes_of(untouched);
    forth.p_out[0] = forth.out[0].data();
    forth.call.out = forth.p_out;
    solo.run(forth.call);
    const auto got = values_of<float>(forth.out[0]);
    size_t at = 0;
    for (int64_t e = 0; e < local; ++e) {
      for (int64_t i = 0; i < mine[e]; ++i) {
        ASSERT_EQ(got[at++], static_cast<float>(me * local + e));
      }
    }
    for (; at < got.size(); ++at) {
      ASSERT_EQ(got[at], -1);
    }
    Side home;
    home.kind = forth.kind;
    home.kind.attrs = {{"from", int64_t{0}}, {"to", int64_t{1}}};
    std::swap(home.kind.in[0], home.kind.out[0]);
    home.members = sizes.members;
    home.in = {forth.out[0], sizes.out[0]};
    home.prepare();
    std::vector<float> marks(static_cast<size_t>(there.numel()), -7);
    home.out[0] = bytes_of(marks);
    home.p_out[0] = home.out[0].data();
    home.call.out = home.p_out;
    solo.run(home.call);
    const auto returned = values_of<float>(home.out[0]);
    size_t index = 0;
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t i = 0; i < counts[e]; ++i, ++index) {
        ASSERT_NE(returned[index], -7) << "row " << index << " was not delivered";
        if (e / local == me) {
          ASSERT_EQ(returned[index], static_cast<float>(e));
        }
      }
    }
    for (; index < returned.size(); ++index) {
      ASSERT_EQ(returned[index], -7);
    }
  }
}

/// Ranks with different numbers of tokens have rows in proportion: up to the bound, and no more, if
/// all go to this rank's experts.
TEST(SoloComm, KeepsCountsInProportionToTokens) {
  const std::vector<int64_t> tokens = {9, 3};
  for (const int32_t me : {0, 1}) {
    SoloCommunicator solo(me);
    const int64_t own = tokens[static_cast<size_t>(me)];
    std::vector<int64_t> counts(4, 0);
    counts[static_cast<size_t>(2 * me)] = counts[static_cast<size_t>(2 * me + 1)] = own;
    Side sizes;
    sizes.kind.op = "size_exchange";
    sizes.kind.in = {{DType::i64, {4}}};
    sizes.kind.out = {{DType::i64, {2, 4}}, {DType::i64, {2}}};
    sizes.in = {bytes_of(counts)};
    sizes.members = {0, 1};
    sizes.prepare();
    sizes.call.tokens = tokens;
    solo.run(sizes.call);
    EXPECT_EQ(values_of<int64_t>(sizes.out[1]), (std::vector<int64_t>{12, 12}));
    Side rows;
    rows.kind.op = "all_to_all";
    rows.kind.attrs = {{"from", int64_t{1}}, {"to", int64_t{0}}};
    set_lengths(tokens, kSlots, &rows.kind.attrs);
    rows.kind.in = {{DType::f32, {4, own, 1}, 2}, {DType::i64, {2, 4}}};
    rows.kind.out = {{DType::f32, {2, 12, 1}, 2}};
    rows.members = {0, 1};
    rows.in = {bytes_of(std::vector<float>(static_cast<size_t>(4 * own), 7)), sizes.out[0]};
    rows.prepare();
    solo.run(rows.call);
    EXPECT_EQ(values_of<float>(rows.out[0]), std::vector<float>(24, 7));
  }
}

/// In unevenly shared dims, a peer may have one index more, filled with this rank's data, unless
/// the values are known.
TEST(SoloComm, GathersUnevenParts) {
  for (const int32_t me : {0, 1}) {
    const int64_t own = me == 0 ? 3 : 2;
    const auto gather = [&](const KnownOutputs& known) {
      SoloCommunicator solo(me, known);
      Side rows;
      rows.kind.op = "all_gather";
      rows.kind.attrs = {{"dim", int64_t{0}}, {"size", int64_t{5}}};
      rows.kind.in = {{DType::f32, {own}}};
      rows.kind.out = {{DType::f32, {5}}};
      rows.members = {0, 1};
      rows.in = {bytes_of(std::vector<float>(static_cast<size_t>(own), 7))};
      rows.prepare();
      solo.run(rows.call);
      return values_of<float>(rows.out[0]);
    };
    EXPECT_EQ(gather({}), std::vector<float>(5, 7));
    const std::vector<float> others = gather([&](int32_t rank, const Call& call) {
      EXPECT_EQ(rank, me);
      static_cast<float*>(call.out[0])[rank == 0 ? 4 : 0] = 3;
    });
    EXPECT_EQ(others,
              me == 0 ? (std::vector<float>{7, 7, 7, 7, 3}) : (std::vector<float>{3, 7, 7, 7, 7}));
  }
}

TEST(SoloComm, AReceiveGetsKnownValues) {
  SoloCommunicator solo(1, [](int32_t, const Call& call) {
    if (call.task == 5) {
      static_cast<int32_t*>(call.out[0])[0] = 12;
    }
  });
  for (const int32_t task : {4, 5}) {
    Side side = message("recv", {DType::i32, {2}}, 0, 0);
    side.prepare();
    side.call.task = task;
    solo.run(side.call);
    EXPECT_EQ(values_of<int32_t>(side.out[0]), (std::vector<int32_t>{task == 5 ? 12 : 0, 0}));
  }
}

TEST(SoloComm, ExecutesOtherCollectives) {
  SoloCommunicator solo(1);
  Rng rng(7);
  auto run = [&](Side& s) {
    s.members = {0, 1, 2};
    s.prepare();
    solo.run(s.call);
  };
  Side reduce;
  reduce.kind.op = "all_reduce";
  reduce.kind.in = reduce.kind.out = {{DType::f64, {5}}, {DType::f32, {2}}};
  for (const TensorType& t : reduce.kind.in) {
    reduce.in.push_back(random_tensor(t, rng));
  }
  run(reduce);
  EXPECT_EQ(reduce.out, reduce.in);
  Side gather;
  gather.kind.op = "all_gather";
  gather.kind.attrs = {{"dim", int64_t{0}}};
  gather.kind.in = {{DType::f32, {2}}}, gather.kind.out = {{DType::f32, {6}}};
  gather.in = {random_tensor(gather.kind.in[0], rng)};
  run(gather);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::memcmp(gather.out[0].data() + 8 * i, gather.in[0].data(), 8), 0);
  }
  Side scatter;
  scatter.kind.op = "reduce_scatter";
  scatter.kind.attrs = {{"dim", int64_t{0}}};
  scatter.kind.in = {{DType::f32, {6}}}, scatter.kind.out = {{DType::f32, {2}}};
  scatter.in = {random_tensor(scatter.kind.in[0], rng)};
  run(scatter);
  // The block of rank 1 from three ranks with equal data.
  const auto whole = values_of<float>(scatter.in[0]), block = values_of<float>(scatter.out[0]);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(block[i], whole[2 + i] + whole[2 + i] + whole[2 + i]);
  }
  Side sent = message("send", {DType::f32, {2}}, 2, 0, Bytes(8));
  run(sent);
  Side got = message("recv", {DType::f32, {2}}, 2, 0);
  run(got);
  EXPECT_EQ(got.out[0], Bytes(8));
}

}  // namespace
}  // namespace hocket::comm
