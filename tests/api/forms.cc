// Every kind in every form: named, by handle, out of place with constant input, in place, in
// groups, blocking, in shared memory, and as raw bytes.
#include "tests/api/forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/support/expect_error.h"

namespace tutti::test {
namespace {

// Row counts from a few to several chunks of shared memory, so that each of its algorithms runs.
const std::vector<int64_t> kRows{1, 2, 6'000, 30'000};

TUTTI_CASE(Forms, NamedOutOfPlaceAndInPlace) { check_named(comm, kRows); }
TUTTI_CASE(Forms, ByHandleStepAfterStep) { check_by_handle(comm, {2, 6'000}); }
TUTTI_CASE(Forms, Blocking) { check_blocking(comm, kRows); }
TUTTI_CASE(Forms, GroupsIntoTheCallersMemory) { check_groups(comm); }

// All ranks, or every second one, have their arrays in memory that the other ranks can reach.
TUTTI_CASE(Forms, InMemoryThatTheRanksReach) {
  for (const bool mixed : {false, true})
    for_each_kind(comm, DataType::f32, {2, 30'000},
                  [&](const KindForms& kind, const Arrays& arrays, const std::string& name) {
                    SCOPED_TRACE(mixed ? "every second rank" : "every rank");
                    for (const bool blocking : {false, true}) {
                      std::vector<SharedRegion> regions;
                      Heap heap;
                      const Memory memory = [&](int64_t bytes) {
                        if (mixed && comm.rank() % 2 == 1) return heap(bytes);
                        regions.push_back(comm.allocate(std::max<int64_t>(bytes, 1)));
                        return regions.back().data();
                      };
                      check_places(comm, kind, arrays, memory,
                                   [&](ConstTensorView in, TensorView out) {
                                     if (blocking)
                                       kind.block(comm, name, in, out);
                                     else
                                       kind.start(comm, name, in, out).wait();
                                   });
                    }
                  });
}

// A struct that only the program understands.
struct __attribute__((packed)) Particle {
  int8_t charge;
  int16_t place[3];
  bool operator==(const Particle& other) const {
    return std::memcmp(this, &other, sizeof other) == 0;
  }
};
static_assert(sizeof(Particle) == 7);

Particle particle(int64_t i) {
  const auto near = static_cast<int16_t>(i % 30'000);
  return {static_cast<int8_t>(i % 100), {near, static_cast<int16_t>(-near), 3}};
}

// All kinds that only move data take whole rows of bytes. A kind that reduces does not.
TUTTI_CASE(Forms, RawBytes) {
  for_each_kind(comm, DataType::raw, kRows,
                [&](const KindForms& kind, const Arrays& arrays, const std::string& name) {
                  Heap heap;
                  const auto run = [&](ConstTensorView in, TensorView out) {
                    kind.start(comm, name, in, out).wait();
                  };
                  const auto block = [&](ConstTensorView in, TensorView out) {
                    kind.block(comm, name, in, out);
                  };
                  if (!kind.reduces()) {
                    check_places(comm, kind, arrays, std::ref(heap), run);
                    check_places(comm, kind, arrays, std::ref(heap), block);
                    return;
                  }
                  const auto input = arrays.at(heap(arrays.bytes(arrays.given())), arrays.given());
                  const auto output = arrays.at(heap(arrays.bytes(arrays.taken())), arrays.taken());
                  for (const auto& way : {std::function(run), std::function(block)}) {
                    const auto error = error_of([&] { way(input, output); });
                    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
                    EXPECT_NE(
                        std::string_view(error.what()).find("op sum cannot be applied to raw"),
                        std::string_view::npos)
                        << error.what();
                  }
                });
  expect_still_works(comm);
}

TUTTI_CASE(Forms, StructsThatNoElementFits) {
  // Each rank has another number of structs. The largest numbers exceed one chunk of shared memory.
  for (const int64_t count : {1, 5, 100'000}) {
    SCOPED_TRACE(fmt::format("{} structs", count));
    std::vector<Particle> mine, all, all_of_group;
    for (int64_t i = 0; i < count + comm.rank(); ++i) mine.push_back(particle(i + comm.rank()));
    std::vector<Particle> expected;
    for (int rank = 0; rank < comm.size(); ++rank)
      for (int64_t i = 0; i < count + rank; ++i) expected.push_back(particle(i + rank));
    all.resize(expected.size());
    all_of_group.resize(expected.size());
    const auto rows = [](std::vector<Particle>& particles) {
      return TensorView::raw(particles.data(), static_cast<int64_t>(particles.size()));
    };
    comm.allgather("particles", rows(mine), rows(all)).wait();
    EXPECT_TRUE(all == expected);
    const std::vector<NamedTransfer> group{{"particles", rows(mine), rows(all_of_group)}};
    comm.grouped_allgather("groups of them", group).wait();
    EXPECT_TRUE(all_of_group == expected);
    if (comm.rank() == 0) comm.send("some", rows(mine), 1).wait();
    if (comm.rank() != 1) continue;
    std::vector<Particle> came(static_cast<size_t>(count));
    comm.recv("some", rows(came), 0).wait();
    EXPECT_TRUE(std::equal(came.begin(), came.end(), expected.begin()));
  }
  expect_still_works(comm);  // no rank closes while others still negotiate "some"
}

TUTTI_CASE(Forms, PointersAndScalars) {
  const auto size = static_cast<size_t>(comm.size());
  const std::vector<double> mine{1.0 * comm.rank(), 2.0};
  std::vector<double> all(2 * size);
  comm.allgather("pointers", {mine.data(), 2}, {all.data(), static_cast<int64_t>(all.size())})
      .wait();
  for (size_t rank = 0; rank < size; ++rank) EXPECT_EQ(all[2 * rank], static_cast<double>(rank));
  const int root = comm.size() - 1;
  double one = comm.rank() == root ? 7.5 : 0;
  comm.broadcast("one", {&one, 1}, root).wait();
  EXPECT_EQ(one, 7.5);
  EXPECT_EQ(comm.broadcast_blocking("number", comm.rank() * 10, root), root * 10);
  const auto numbers = comm.allgather_blocking("numbers", comm.rank() + 0.5);
  ASSERT_EQ(numbers.size(), size);
  EXPECT_EQ(numbers.back(), static_cast<double>(size) - 0.5);
}

// Each rank sends to the next one, under a name with its own rank.
TUTTI_CASE(Forms, SendAndReceive) {
  const int to = (comm.rank() + 1) % comm.size();
  const int from = (comm.rank() + comm.size() - 1) % comm.size();
  const auto ring = [](int rank) { return fmt::format("ring of {}", rank); };
  for (const int64_t count : {int64_t{1}, int64_t{100'000}}) {
    const auto sends = comm.declare(ring(comm.rank()), Shape{count}, DataType::f32);
    const auto receives = comm.declare(ring(from), Shape{count}, DataType::f32);
    for (int step = 0; step < 4; ++step) {
      SCOPED_TRACE(fmt::format("{} elements, step {}", count, step));
      const auto value = [&](int rank) { return static_cast<float>(rank * 10 + step); };
      const std::vector<float> mine(static_cast<size_t>(count), value(comm.rank()));
      std::vector<float> came(mine.size());
      const auto check = [&](Work received, Work sent) {
        received.wait();
        sent.wait();
        EXPECT_EQ(came, std::vector<float>(came.size(), value(from)));
        EXPECT_EQ(received.source(), from);
        std::fill(came.begin(), came.end(), -1.0f);
      };
      check(comm.recv(ring(from), came, from), comm.send(ring(comm.rank()), mine, to));
      check(comm.recv(receives, came, from), comm.send(sends, mine, to));
    }
  }
  comm.barrier("the ring is closed").wait();
}

// The same ring with blocking calls, before and after the pairs are prepared, and a chain in one
// direction.
TUTTI_CASE(Forms, BlockingSendAndReceive) {
  const int rank = comm.rank(), size = comm.size();
  const int to = (rank + 1) % size, from = (rank + size - 1) % size;
  const auto ring = [](int of) { return fmt::format("ring of {}", of); };
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{100'000}}) {
    for (int step = 0; step < 8; ++step) {
      SCOPED_TRACE(fmt::format("{} elements, step {}", count, step));
      const auto value = [&](int of) { return static_cast<float>(of * 10 + step); };
      std::vector<float> mine(static_cast<size_t>(count), value(rank)), came(mine.size(), -1.0f);
      comm.sendrecv_blocking(ring(rank), mine, to, ring(from), came, from);
      EXPECT_EQ(came, std::vector<float>(came.size(), value(from)));
      if (rank > 0) comm.recv_blocking("up", came, rank - 1);
      EXPECT_EQ(came, std::vector<float>(came.size(), value(rank > 0 ? 0 : from)));
      if (rank == 0) came = mine;
      if (rank + 1 < size) comm.send_blocking("up", came, rank + 1);
    }
  }
  comm.barrier("the ring is closed").wait();
}

// The transfer in one direction fails and the other one arrives. The error comes after both, and
// all ranks go on.
TUTTI_CASE(Forms, BlockingSendAndReceiveWithErrors) {
  if (comm.rank() < 2) {
    const int other = 1 - comm.rank();
    const auto name = [](int of) { return fmt::format("from {}", of); };
    std::vector<int> mine(1000, comm.rank()), came(1000, -1);
    const std::span<int> room = comm.rank() == 0 ? std::span(came).first(10) : std::span(came);
    const auto exchange = [&](std::span<int> output) {
      comm.sendrecv_blocking(name(comm.rank()), mine, other, name(other), output, other);
    };
    for (int step = 0; step < 8; ++step) {
      const std::string text = error_of([&] { exchange(room); }).what();
      // The calls are matched by order or by name, so either rank may be named first.
      for (const auto* said : {"rank 1 sends ", "i32[1000]", "rank 0 ", "i32[10]"})
        EXPECT_NE(text.find(said), text.npos) << text;
      EXPECT_NE(text.find("Nothing was changed."), text.npos) << text;
      EXPECT_EQ(came, std::vector<int>(1000, comm.rank() == 0 ? -1 : 0));
      std::fill(came.begin(), came.end(), -1);
    }
    exchange(came);
    EXPECT_EQ(came, std::vector<int>(1000, other));
    test::expect_refused("what is sent and what is received share memory",
                         [&] { exchange(std::span(mine).first(1)); });
    test::expect_refused("cannot send to itself",
                         [&] { comm.sendrecv_blocking("x", mine, comm.rank(), "y", came, other); });
    test::expect_refused("cannot send to itself",
                         [&] { comm.sendrecv_blocking("x", mine, other, "y", came, comm.rank()); });
  }
  expect_still_works(comm);
}

}  // namespace
}  // namespace tutti::test
