// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Every communication op, from its record alone: execution agrees with the movement, sequentially
// and between threads; types, costs and documentation follow. A new op is tested once it is listed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "collectives/implementation.h"
#include "comm/process_world.h"
#include "tests/comm/comm_util.h"
#include "tests/comm/transport_util.h"
#include "tests/compare_util.h"

namespace hocket::comm {
namespace {

using test::Bytes;
using test::Case;

/// Calls `fn` with the cases of every collective's samples, for 1 to 5 members, `rounds` times.
void for_all_cases(uint64_t rounds, const std::function<void(const Case&, Rng&)>& fn) {
  Rng rng(1);
  for (const Op* op : all()) {
    if (op->role != Role::collective) continue;
    ASSERT_TRUE(op->run && op->samples) << op->name;
    for (int64_t n = 1; n <= 5; ++n) {
      const std::vector<Sample> samples = op->samples(n);
      ASSERT_FALSE(samples.empty()) << op->name;
      for (const Sample& sample : samples) {
        for (uint64_t round = 0; round < rounds; ++round) {
          fn(test::make_case(*op, sample, n, 1, rng), rng);
        }
      }
    }
  }
}

constexpr uint64_t kRounds = 6;  // each with other values and another order of members
/// Rounds between threads or processes: a third, unless HOCKET_LONG=1.
const uint64_t kConnectedRounds = hocket::test::sampled(kRounds);
constexpr std::chrono::milliseconds kPatience{20'000};

/// The world of each rank. Threads share one; processes have one each.
using Worlds = std::vector<std::shared_ptr<World>>;

Worlds threads_of_a_process(int32_t ranks) {
  const auto world = std::make_shared<LocalWorld>(ranks, kPatience);
  return Worlds(static_cast<size_t>(ranks), world);
}

Worlds processes_with(int32_t ranks, Collectives collectives) {
  Worlds worlds;
  for (const auto& connection : test::connections(ranks, kPatience)) {
    worlds.push_back(std::make_shared<ProcessWorld>(connection, collectives));
  }
  return worlds;
}
Worlds processes(int32_t ranks) { return processes_with(ranks, Collectives::own); }
/// The tests' transport reduces in rank order, too.
Worlds processes_by_transport(int32_t ranks) { return processes_with(ranks, Collectives::c10d); }

/// Runs one thread per member. `inplace`: outputs are the inputs. `spoil`: a member overwrites its
/// operands as soon as it has returned.
std::vector<std::vector<Bytes>> run_on_threads(const Case& c, const Worlds& worlds, bool inplace,
                                               bool spoil) {
  const size_t n = c.members();
  const program::Kind kind =
      program::communication_kind(c.op->id, c.attrs, c.in_types, c.out_types);
  std::vector<std::vector<Bytes>> in = c.in, out(n), result(n);
  std::vector<int32_t> members(n);
  for (size_t m = 0; m < n; ++m) {
    members[m] = static_cast<int32_t>(m);
    for (const TensorType& t : c.out_types) {
      out[m].push_back(Bytes(static_cast<size_t>(t.bytes()), test::kUntouched));
    }
  }
  std::vector<std::string> errors(n);
  std::vector<std::thread> threads;
  for (size_t m = 0; m < n; ++m) {
    threads.emplace_back([&, m] {
      std::vector<void*> from, to;
      for (Bytes& b : in[m]) {
        from.push_back(b.data());
      }
      for (Bytes& b : inplace ? in[m] : out[m]) {
        to.push_back(b.data());
      }
      Call call;
      call.kind = &kind;
      call.in = from;
      call.out = to;
      call.members = members;
      try {
        worlds[m]->communicator(static_cast<int32_t>(m)).run(call);
        result[m] = inplace ? in[m] : out[m];
        if (!spoil) return;
        for (auto* list : {&in[m], &out[m]}) {
          for (Bytes& b : *list) {
            std::fill(b.begin(), b.end(), std::byte{0xEE});
          }
        }
      } catch (const Error& e) {
        errors[m] = e.what();
      }
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
  for (const std::string& e : errors) {
    EXPECT_EQ(e, "") << c.name;
  }
  return result;
}

TEST(CommOps, ExecutionMatchesTheMovement) {
  int cases = 0;
  for_all_cases(kRounds, [&](const Case& c, Rng& rng) {
    EXPECT_EQ(test::difference(c, test::run_in_turn(c, rng)), "");
    ++cases;
  });
  EXPECT_GT(cases, 300);
}

/// Ranks as threads, and as processes with our own collectives or those of the transport.
const std::vector<Worlds (*)(int32_t)> kTransports = {threads_of_a_process, processes,
                                                      processes_by_transport};

TEST(CommOps, AllTransportsGiveTheSameBits) {
  for (const auto& transport : kTransports) {
    for_all_cases(kConnectedRounds, [&](const Case& c, Rng&) {
      const Worlds worlds = transport(static_cast<int32_t>(c.members()));
      EXPECT_EQ(test::difference(c, run_on_threads(c, worlds, false, false)), "");
      if (c.op->in_place) {
        EXPECT_EQ(test::difference(c, run_on_threads(c, worlds, true, false)), "") << "in place";
      }
    });
  }
}

/// Scratch memory of the transport's collectives equals the plan; exchanges, in which a member
/// keeps its own part, use no more.
TEST(CommOps, ScratchMemoryMatchesThePlan) {
  for_all_cases(1, [&](const Case& c, Rng&) {
    const ByTransport by = by_transport(*c.op, c.attrs, c.in_types);
    ASSERT_NE(by, ByTransport::none) << c.name;
    if (c.op->needs_sizes) return;  // size depends on the routing
    const int64_t planned = transport_bytes(Collectives::c10d, *c.op, c.attrs, c.in_types,
                                            c.out_types, static_cast<int64_t>(c.members()));
    const auto connections = test::connections(static_cast<int32_t>(c.members()), kPatience);
    Worlds worlds;
    for (const auto& connection : connections) {
      worlds.push_back(std::make_shared<ProcessWorld>(connection, Collectives::c10d));
    }
    for (int step = 0; step < 2; ++step) {
      run_on_threads(c, worlds, false, false);
      for (size_t m = 0; m < worlds.size(); ++m) {
        const int64_t took = worlds[m]->peak_message_bytes(static_cast<int32_t>(m)) -
                             connections[m]->peak_message_bytes();
        EXPECT_LE(took, planned) << c.name;
        if (by != ByTransport::all_to_all) {
          EXPECT_EQ(took, planned) << c.name;
        }
      }
    }
  });
}

/// Message memory of ranks as processes, with our own collectives, stays within the plan. Here all
/// ranks share a process and its pool, so only the largest case is exact.
TEST(CommOps, MessageMemoryIsWithinThePlan) {
  struct Planned {
    int64_t bytes = 0;  ///< of all members
    Case made;
  };
  Rng rng(3);
  std::vector<Planned> list;
  for (const auto& [members, payload] :
       {std::pair<int64_t, int64_t>{4, 1 << 18}, {3, 1 << 19}, {4, 3 << 20}, {2, 10 << 20}}) {
    for (const Op* op : all()) {
      if (op->role != Role::collective || op->needs_sizes || op->makes_sizes) continue;
      std::vector<Sample> samples = op->samples(members);
      if (payload > 1 << 20) {
        // So many bytes are sent in more parts than are in flight at a time.
        samples.resize(op->divides ? 1 : 0);
      }
      for (const Sample& sample : samples) {
        const std::vector<TensorType> out = infer(*op, sample.attrs, sample.in, members);
        const int64_t extra = payload / op->payload(sample.attrs, sample.in, out);
        Case c = test::make_case(*op, sample, members, extra, rng);
        const int64_t of_each =
            transport_bytes(Collectives::own, *op, c.attrs, c.in_types, c.out_types, members);
        EXPECT_GT(of_each, 0) << c.name;
        list.push_back({members * of_each, std::move(c)});
      }
    }
  }
  std::sort(list.begin(), list.end(),
            [](const Planned& one, const Planned& other) { return one.bytes < other.bytes; });
  int seen = 0;
  for (const Planned& planned : list) {
    const int64_t before = peak_message_bytes();
    const Worlds worlds = processes(static_cast<int32_t>(planned.made.members()));
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(test::difference(planned.made, run_on_threads(planned.made, worlds, false, false)),
                "");
    }
    const int64_t most = peak_message_bytes();
    EXPECT_LE(most, std::max(before, planned.bytes)) << planned.made.name;
    seen += most > before;
    if (&planned == &list.back()) {
      EXPECT_GT(most, planned.bytes / 3) << planned.made.name;
    }
  }
  EXPECT_GT(seen, 5);
}

/// c10d has no reduce-scatter for uneven parts: our own runs instead, and is planned.
TEST(CommOps, MemoryOfCollectivesWithUnevenParts) {
  const Op& op = comm::op(find("reduce_scatter"));
  Attrs attrs;
  attrs.set("dim", int64_t{0});
  const auto bytes = [&](Collectives collectives, int64_t rows, int64_t me) {
    const std::vector<TensorType> in = {{graph::DType::f32, {rows, 64}}};
    return transport_bytes(collectives, op, attrs, in, infer(op, attrs, in, 2, me), 2);
  };
  for (const int64_t me : {0, 1}) {
    EXPECT_EQ(bytes(Collectives::c10d, 5, me), bytes(Collectives::own, 5, me));
    EXPECT_GT(bytes(Collectives::own, 5, me), 0);
  }
  // c10d copies the operand and the block. With our own, each member holds a received message, and
  // a sent one that counts twice.
  EXPECT_EQ(bytes(Collectives::c10d, 6, 0), (6 + 3) * 64 * 4);
  EXPECT_EQ(bytes(Collectives::own, 6, 0), 3 * 3 * 64 * 4);
}

TEST(CommOps, OneMemberHasNoMessages) {
  for_all_cases(1, [&](const Case& c, Rng&) {
    const int64_t bytes = transport_bytes(Collectives::own, *c.op, c.attrs, c.in_types, c.out_types,
                                          static_cast<int64_t>(c.members()));
    EXPECT_EQ(bytes > 0, c.members() > 1) << c.name;
  });
}

// A rank that returns from a collective may change its operands at once, so no other may still be
// reading them. Rows are long, so that the others would still be reading without a barrier.
TEST(CommOps, AMemberMayChangeItsOperandsOnReturn) {
  Rng rng(2);
  for (const auto& transport : kTransports) {
    for (const Op* op : all()) {
      if (op->role != Role::collective) continue;
      for (const Sample& sample : op->samples(4)) {
        for (uint64_t round = 0; round < kConnectedRounds; ++round) {
          const Case c = test::make_case(*op, sample, 4, 3000, rng);
          ASSERT_EQ(test::difference(c, run_on_threads(c, transport(4), false, true)), "");
        }
      }
    }
  }
}

TEST(CommOps, TypesThatDoNotFitAreRefused) {
  for (const Op* op : all()) {
    if (op->role != Role::collective) continue;
    for (const Sample& sample : op->samples(2)) {
      auto refused = [&](const std::function<void(Sample&)>& spoil) {
        Sample bad = sample;
        spoil(bad);
        try {
          infer(*op, bad.attrs, bad.in, 2);
        } catch (const Error&) {
          return true;
        }
        return false;
      };
      SCOPED_TRACE(op->name);
      EXPECT_FALSE(refused([](Sample&) {}));
      EXPECT_TRUE(refused([](Sample& s) { s.in.clear(); }) || op->list);
      EXPECT_TRUE(refused([](Sample& s) { s.in.push_back(s.in[0]); }) || op->list);
      if (op->takes != Takes::any) {
        EXPECT_TRUE(refused([](Sample& s) {
          s.in[0] = s.in[0].routed() ? TensorType{s.in[0].dtype, s.in[0].dims, 0}
                                     : TensorType{graph::DType::f32, {8, 8, 4}, 2};
        }));
      }
      for (const auto& [key, value] : sample.attrs.items()) {
        // Attributes with a default: monoid (sum) and outer (the experts are one run).
        const bool optional = key == "monoid" || key == "outer";
        EXPECT_NE(refused([&](Sample& s) { s.attrs.erase(key); }), optional) << "without " << key;
        EXPECT_TRUE(refused([&](Sample& s) { s.attrs.set(key, int64_t{7}); })) << key << "=7";
        const int64_t* const number = std::get_if<int64_t>(&value);
        if (!number) continue;
        // Numbers that a cast to a narrower type would make equal.
        for (const int64_t beyond : {int64_t{1} << 8, int64_t{1} << 16, int64_t{1} << 32}) {
          EXPECT_TRUE(refused([&](Sample& s) { s.attrs.set(key, *number + beyond); })) << key;
        }
        EXPECT_TRUE(refused([&](Sample& s) { s.attrs.set(key, int64_t{-1}); })) << key << "=-1";
      }
      if (op->needs_sizes) {
        EXPECT_TRUE(refused([](Sample& s) { s.in[1].dims[0] += 1; }));
        EXPECT_TRUE(refused([](Sample& s) { s.in[1].dims[1] += 2; }));
        EXPECT_TRUE(refused([](Sample& s) { s.in[1].dtype = graph::DType::i32; }));
      }
      // Members need not divide the experts of an exchange, nor a cut dim of dense tensors.
      const bool may = op->makes_sizes || op->takes == Takes::dense;
      if (const Placement to = after(*op, sample.attrs); to.is_split() && !may) {
        EXPECT_TRUE(refused([&](Sample& s) { s.in[0].dims[to.dim()] += 1; }));
      }
    }
  }
}

TEST(CommOps, CostsCoverTheMovedData) {
  for (const Op* op : all()) {
    SCOPED_TRACE(op->name);
    ASSERT_TRUE(op->payload);
    if (op->role == Role::receive) continue;
    ASSERT_TRUE(op->algorithms);
    for (int64_t n : {2, 3, 8}) {
      // A rank receives at least the part of the payload that it lacks, in at least one round.
      const double least = op->role != Role::collective ? 1 : static_cast<double>(n - 1) / n;
      const auto algorithms = op->algorithms(static_cast<double>(n), 1000);
      ASSERT_FALSE(algorithms.empty());
      for (const Algorithm& a : algorithms) {
        EXPECT_GE(a.rounds, 1) << a.name;
        EXPECT_GE(a.bytes, 1000 * least * (1 - 1e-12)) << a.name;
      }
      if (op->role != Role::collective) continue;
      for (const Sample& s : op->samples(n)) {
        const auto out = infer(*op, s.attrs, s.in, n);
        const int64_t payload = op->payload(s.attrs, s.in, out);
        EXPECT_GT(payload, 0);
        int64_t in_bytes = 0, out_bytes = 0;
        for (const TensorType& t : s.in) {
          in_bytes += t.bytes();
        }
        for (const TensorType& t : out) {
          out_bytes += t.bytes();
        }
        EXPECT_LE(payload, std::max(in_bytes, out_bytes));
      }
    }
  }
}

TEST(CommOps, ReshardingFindsTheMovement) {
  for (const Op* op : all()) {
    if (op->role != Role::collective) continue;
    for (int64_t n : {2, 4}) {
      for (const Sample& s : op->samples(n)) {
        const Placement from = before(*op, s.attrs), to = after(*op, s.attrs);
        const auto found = resharding(s.in[0], from, to, n);
        ASSERT_TRUE(found) << op->name;
        EXPECT_EQ(before(*found->op, found->attrs), from) << op->name;
        EXPECT_EQ(after(*found->op, found->attrs), to) << op->name;
        EXPECT_EQ(found->out.back(),
                  infer(*op, s.attrs, {s.in.data(), op->list ? 1 : s.in.size()}, n).back());
      }
    }
  }
  const TensorType dense{graph::DType::f32, {8, 8}, 0};
  EXPECT_FALSE(resharding(dense, Placement::replicate(), Placement::partial(), 2));
  EXPECT_FALSE(resharding(dense, Placement::split(0), Placement::partial(), 2));
  EXPECT_FALSE(resharding(dense, Placement::replicate(), Placement::split(0), 2));
  EXPECT_FALSE(resharding(dense, Placement::partial(), Placement::split(5), 2));
  EXPECT_FALSE(resharding(dense, Placement::partial(), Placement::split(0), 9));  // of 8
}

/// Where members do not divide a dim, the first ones have one more.
TEST(CommOps, MembersMayHaveUnevenShares) {
  const Op& gather = op(find("all_gather"));
  const Op& scatter = op(find("reduce_scatter"));
  const Op& resplit = op(find("resplit"));
  const auto f32 = [](graph::Dims dims) { return TensorType{graph::DType::f32, std::move(dims)}; };
  Attrs sized;
  sized.set("dim", int64_t{0});
  sized.set("size", int64_t{7});
  const std::vector<TensorType> three{f32({3, 2})}, two{f32({2, 2})}, seven{f32({7, 2})};
  EXPECT_EQ(infer(gather, sized, three, 3, 0), seven);
  EXPECT_EQ(infer(gather, sized, two, 3, 1), seven);
  EXPECT_THROW(infer(gather, sized, three, 3, 1), Error);
  EXPECT_THROW(infer(gather, sized, two, 7, 1), Error);
  Attrs rows;
  rows.set("dim", int64_t{0});
  EXPECT_EQ(infer(scatter, rows, seven, 3, 0), three);
  EXPECT_EQ(infer(scatter, rows, seven, 3, 2), two);
  EXPECT_THROW(infer(scatter, rows, seven, 8, 0), Error);
  Attrs across;
  across.set("from", int64_t{0});
  across.set("to", int64_t{1});
  across.set("size", int64_t{7});
  const std::vector<TensorType> wide{f32({3, 4})}, narrow{f32({2, 4})};
  EXPECT_EQ(infer(resplit, across, wide, 3, 0), std::vector<TensorType>{f32({7, 2})});
  EXPECT_EQ(infer(resplit, across, narrow, 3, 2), std::vector<TensorType>{f32({7, 1})});
  EXPECT_TRUE(types_match(gather, sized, {three, seven}, {two, seven}));
  EXPECT_FALSE(types_match(gather, sized, {three, seven}, {seven, seven}));
  EXPECT_FALSE(types_match(summing(), {}, {three, three}, {two, two}));
}

/// Rows go to their experts and back, from members with different numbers of tokens.
TEST(CommOps, MembersMayHaveDifferentTokens) {
  const Op& exchange = op(find("all_to_all"));
  const auto rows = [](int64_t experts, int64_t tokens) {
    return TensorType{graph::DType::f32, {experts, tokens, 4}, 2};
  };
  const TensorType sizes{graph::DType::i64, {3, 6}};
  const std::vector<int64_t> tokens{5, 1, 2};
  Attrs out, back;
  for (const auto& [attrs, from] : {std::pair{&out, int64_t{1}}, {&back, int64_t{0}}}) {
    attrs->set("from", from);
    attrs->set("to", 1 - from);
    set_lengths(tokens, from == 1 ? kSlots : kBlocks, attrs);
  }
  EXPECT_EQ(lengths_of(out, kSlots), tokens);
  for (int64_t me = 0; me < 3; ++me) {
    const std::vector<TensorType> mine{rows(6, tokens[static_cast<size_t>(me)]), sizes};
    const std::vector<TensorType> theirs{rows(2, 8), sizes};
    EXPECT_EQ(infer(exchange, out, mine, 3, me)[0], theirs[0]);
    EXPECT_EQ(infer(exchange, back, theirs, 3, me)[0], mine[0]);
    EXPECT_THROW(infer(exchange, out, mine, 3, (me + 1) % 3), Error);
    EXPECT_EQ(exchange.payload(out, mine, infer(exchange, out, mine, 3, me)),
              std::max<int64_t>(tokens[static_cast<size_t>(me)], 3) * 2 * 16);
  }
  const std::vector<TensorType> five{rows(6, 5), sizes}, one{rows(6, 1), sizes};
  const std::vector<TensorType> all{rows(2, 8)}, fewer{rows(2, 7), sizes};
  EXPECT_TRUE(types_match(exchange, out, {five, all}, {one, all}));
  out.erase(kSlots);
  EXPECT_FALSE(types_match(exchange, out, {five, all}, {one, all}));
  EXPECT_THROW(infer(exchange, back, fewer, 3, 0), Error);
  for (const char* wrong : {"", "5,1", "5,1,2,3", "5,0,3", "5,,3", "5 1 2", "5,1,2x"}) {
    out.set(kSlots, std::string(wrong));
    EXPECT_THROW(infer(exchange, out, five, 3, 0), Error) << wrong;
  }
  out.set(kSlots, int64_t{8});
  EXPECT_THROW(infer(exchange, out, five, 3, 0), Error);
}

TEST(CommOps, FindsOpsByName) {
  for (const Op* op : all()) {
    EXPECT_EQ(find(op->name), op->id);
    EXPECT_EQ(&comm::op(op->id), op);
    EXPECT_TRUE(std::string(op->doc).starts_with(op->name)) << op->doc;
  }
  EXPECT_EQ(find("linear"), Id::none);
  EXPECT_EQ(find(""), Id::none);
  EXPECT_TRUE(summing().list);
  EXPECT_EQ(message(Role::send).role, Role::send);
  EXPECT_EQ(message(Role::receive).role, Role::receive);
}

/// HOCKET_UPDATE=1 rewrites the page instead.
TEST(CommOps, TheDocumentationListsAllOps) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const std::string path = std::string(root ? root : ".") + "/docs/collectives.md";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string page = text.str();
  const std::string begin = "<!-- table -->\n", end = "<!-- end -->\n";
  const size_t from = page.find(begin), to = page.find(end);
  ASSERT_NE(from, std::string::npos) << path;
  ASSERT_NE(to, std::string::npos) << path;
  const std::string now = page.substr(from + begin.size(), to - from - begin.size());
  if (std::getenv("HOCKET_UPDATE")) {
    page.replace(from + begin.size(), now.size(), test::ops_table());
    std::ofstream(path) << page;
    return;
  }
  EXPECT_EQ(now, test::ops_table()) << "run this test with HOCKET_UPDATE=1 and read the diff";
}

}  // namespace
}  // namespace hocket::comm
