// Every kind in every form: named, by handle, out of place with constant input, in place, in
// groups, blocking, in memory that the ranks reach, and as raw bytes.
#include <fmt/format.h>

#include "tests/api/case.h"
#include "tutti/core/shared_region.h"

namespace tutti::test {
namespace {

constexpr int64_t kColumns = 3;
constexpr int kRoot = 1;

// What one kind does with rows of three elements. `rows`: of a part.
struct KindForms {
  const char* name;
  // Of input and output in parts; 0: this rank has none.
  int64_t (*given)(int rank, int size);
  int64_t (*taken)(int rank, int size);
  double (*input)(int rank, int64_t part, int64_t i);             // element i of a part
  double (*output)(int rank, int size, int64_t part, int64_t i);  // the same
  // Where the two may share memory: the output's beginning in the input in parts (negative: the
  // input's in the output).
  int64_t (*in_place)(int rank);
  Work (*start)(Communicator&, OperationName, ConstTensorView, TensorView);
  void (*block)(Communicator&, std::string_view, const ConstTensorView&, const TensorView&);
};

double element(int rank, int64_t part, int64_t i) {
  return static_cast<double>((rank + 2 * part + i) % 7);
}
double sum_of(int size, int64_t part, int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += element(rank, part, i);
  return sum;
}
int64_t one(int, int) { return 1; }
int64_t of_each(int, int size) { return size; }
int64_t at_root(int rank, int) { return rank == kRoot ? 1 : 0; }
int64_t each_at_root(int rank, int size) { return rank == kRoot ? size : 0; }
int64_t same(int) { return 0; }
int64_t own_of_output(int rank) { return -rank; }
int64_t own_of_input(int rank) { return rank; }

const ReduceOptions kFormSum{.op = ReduceOp::sum};

const KindForms kKinds[] = {
    {"allreduce", one, one, element,
     [](int, int size, int64_t part, int64_t i) { return sum_of(size, part, i); }, same,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.allreduce(name, in, out, kFormSum);
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.allreduce_blocking(name, in, out, ReduceOp::sum); }},
    {"reduce", one, at_root, element,
     [](int, int size, int64_t part, int64_t i) { return sum_of(size, part, i); }, same,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.reduce(name, in, out, kRoot);
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.reduce_blocking(name, in, out, kRoot); }},
    {"broadcast", at_root, one, element,
     [](int, int, int64_t part, int64_t i) { return element(kRoot, part, i); }, same,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.broadcast(name, in, out, kRoot);
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) {
       // The blocking form is in place.
       if (comm.rank() == kRoot && in.view().data() != out.data())
         std::copy_n(in.view().data(), out.bytes(), out.data());
       comm.broadcast_blocking(name, out, kRoot);
     }},
    {"allgather", one, of_each, element,
     [](int, int, int64_t part, int64_t i) { return element(static_cast<int>(part), 0, i); },
     own_of_output,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.allgather(name, in, out);
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.allgather_blocking(name, in, out); }},
    {"gather", one, each_at_root, element,
     [](int, int, int64_t part, int64_t i) { return element(static_cast<int>(part), 0, i); },
     own_of_output,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.gather(name, in, out, kRoot);
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.gather_blocking(name, in, out, kRoot); }},
    {"scatter", each_at_root, one, element,
     [](int rank, int, int64_t, int64_t i) { return element(kRoot, rank, i); }, own_of_input,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.scatter(name, in, out, kRoot);
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.scatter_blocking(name, in, out, kRoot); }},
    {"reduce_scatter", of_each, one, element,
     [](int rank, int size, int64_t, int64_t i) { return sum_of(size, rank, i); }, own_of_input,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.reduce_scatter(name, in, out, kFormSum);
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.reduce_scatter_blocking(name, in, out, ReduceOp::sum); }},
    // The same with the result where the input begins, as in MPI.
    {"reduce_scatter", of_each, one, element,
     [](int rank, int size, int64_t, int64_t i) { return sum_of(size, rank, i); }, same,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.reduce_scatter(name, in, out, kFormSum);
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.reduce_scatter_blocking(name, in, out, ReduceOp::sum); }},
    {"alltoall", of_each, of_each, element,
     [](int rank, int, int64_t part, int64_t i) {
       return element(static_cast<int>(part), rank, i);
     },
     same,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.alltoall(name, in, out, {});
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.alltoall_blocking(name, in, out); }},
};

// One rank's arrays of one kind, wherever they lie.
class Arrays {
 public:
  Arrays(Communicator& comm, const KindForms& kind, int64_t rows, DataType dtype)
      : comm_(comm),
        kind_(kind),
        rows_(rows),
        dtype_(dtype),
        given_(kind.given(comm.rank(), comm.size())),
        taken_(kind.taken(comm.rank(), comm.size())) {}

  // As raw bytes, too, the elements are floats.
  Shape shape(int64_t parts) const {
    return {parts * rows_, kColumns * static_cast<int64_t>(sizeof(float)) / size_of(dtype_)};
  }
  int64_t bytes(int64_t parts) const { return shape(parts).count() * size_of(dtype_); }
  int64_t given() const { return given_; }
  int64_t taken() const { return taken_; }
  TensorView at(std::byte* data, int64_t parts) const { return {data, shape(parts), dtype_}; }

  void fill(const TensorView& input) const {
    each(given_, [&](int64_t part, int64_t i, int64_t at) {
      put(input, at, kind_.input(comm_.rank(), part, i));
    });
  }
  void expect_input(const TensorView& input) const {
    each(given_, [&](int64_t part, int64_t i, int64_t at) {
      compare("input", at, get(input, at), kind_.input(comm_.rank(), part, i));
    });
  }
  void expect_output(const TensorView& output) const {
    each(taken_, [&](int64_t part, int64_t i, int64_t at) {
      compare("output", at, get(output, at), kind_.output(comm_.rank(), comm_.size(), part, i));
    });
  }

 private:
  template <class Body>
  void each(int64_t parts, Body&& body) const {
    const int64_t count = rows_ * kColumns;
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t i = 0; i < count; ++i) body(part, i, part * count + i);
  }
  void compare(const char* what, int64_t at, double got, double expected) const {
    if (got == expected || testing::Test::HasFailure()) return;
    ADD_FAILURE() << what << ", element " << at << " on rank " << comm_.rank() << ": " << got
                  << " instead of " << expected;
  }
  static void put(const TensorView& view, int64_t at, double value) {
    reinterpret_cast<float*>(view.data())[at] = static_cast<float>(value);
  }
  static double get(const TensorView& view, int64_t at) {
    return reinterpret_cast<const float*>(view.data())[at];
  }

  Communicator& comm_;
  const KindForms& kind_;
  const int64_t rows_;
  const DataType dtype_;
  const int64_t given_, taken_;
};

using Memory = std::function<std::byte*(int64_t bytes)>;

// Out of place and in place, by `run`, in memory from `memory`.
void check_places(Communicator& comm, const KindForms& kind, const Arrays& arrays,
                  const Memory& memory,
                  const std::function<void(ConstTensorView, TensorView)>& run) {
  {
    SCOPED_TRACE("out of place");
    const auto input = arrays.at(memory(arrays.bytes(arrays.given())), arrays.given());
    const auto output = arrays.at(memory(arrays.bytes(arrays.taken())), arrays.taken());
    arrays.fill(input);
    run(input, output);
    arrays.expect_output(output);
    arrays.expect_input(input);
  }
  SCOPED_TRACE("in place");
  const int64_t place = kind.in_place(comm.rank());
  auto* whole = memory(arrays.bytes(std::max<int64_t>({arrays.given(), arrays.taken(), 1})));
  const bool both = arrays.given() > 0 && arrays.taken() > 0;
  const auto input =
      arrays.at(whole + (both && place < 0 ? arrays.bytes(-place) : 0), arrays.given());
  const auto output =
      arrays.at(whole + (both && place > 0 ? arrays.bytes(place) : 0), arrays.taken());
  arrays.fill(input);
  run(input, output);
  arrays.expect_output(output);
}

// Heap memory that lives as long as this.
class Heap {
 public:
  std::byte* operator()(int64_t bytes) {
    kept_.emplace_back(Shape{std::max<int64_t>(bytes, 1)}, DataType::u8);
    return kept_.back().data();
  }

 private:
  std::vector<Tensor> kept_;
};

void for_each_kind(
    Communicator& comm, DataType dtype, const std::vector<int64_t>& row_counts,
    const std::function<void(const KindForms&, const Arrays&, const std::string& name)>& body) {
  int number = 0;
  for (const auto& kind : kKinds)
    for (const int64_t rows : row_counts) {
      const auto name = fmt::format("{} {} {} {}", kind.name, number++, to_string(dtype), rows);
      SCOPED_TRACE(name);
      body(kind, Arrays(comm, kind, rows, dtype), name);
      if (testing::Test::HasFailure()) return;
    }
}

// A few rows, and chunks of shared memory enough for each of its ways.
const std::vector<int64_t> kRows{1, 2, 6'000, 30'000};
const std::vector<int64_t> kFewRows{2, 6'000};

TUTTI_CASE(Forms, NamedOutOfPlaceAndInPlace) {
  for_each_kind(comm, DataType::f32, kRows,
                [&](const KindForms& kind, const Arrays& arrays, const std::string& name) {
                  Heap heap;
                  check_places(comm, kind, arrays, std::ref(heap),
                               [&](ConstTensorView in, TensorView out) {
                                 kind.start(comm, name, in, out).wait();
                               });
                });
}

TUTTI_CASE(Forms, ByHandleStepAfterStep) {
  for_each_kind(
      comm, DataType::f32, kFewRows,
      [&](const KindForms& kind, const Arrays& arrays, const std::string& name) {
        Heap heap;
        const auto handle =
            comm.declare(name, arrays.shape(std::max(arrays.given(), int64_t{1})), DataType::f32);
        for (int step = 0; step < 5; ++step)
          check_places(comm, kind, arrays, std::ref(heap), [&](ConstTensorView in, TensorView out) {
            kind.start(comm, handle, in, out).wait();
          });
      });
}

TUTTI_CASE(Forms, Blocking) {
  for_each_kind(comm, DataType::f32, kRows,
                [&](const KindForms& kind, const Arrays& arrays, const std::string& name) {
                  Heap heap;
                  check_places(
                      comm, kind, arrays, std::ref(heap),
                      [&](ConstTensorView in, TensorView out) { kind.block(comm, name, in, out); });
                });
}

// All ranks have their arrays in such memory, or every second one.
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

TUTTI_CASE(Forms, GroupsIntoTheCallersMemory) {
  constexpr size_t kMembers = 5;
  for (const auto& kind : kKinds) {
    const std::string_view name = kind.name;
    if (name != "allreduce" && name != "allgather" && name != "reduce_scatter") continue;
    for (int step = 0; step < 5; ++step) {
      Heap heap;
      std::vector<Arrays> arrays;
      std::vector<NamedTransfer> members;
      for (size_t i = 0; i < kMembers; ++i) {
        arrays.emplace_back(comm, kind, static_cast<int64_t>(1 + 700 * i), DataType::f32);
        const auto& one = arrays.back();
        const auto input = one.at(heap(one.bytes(one.given())), one.given());
        one.fill(input);
        members.push_back({fmt::format("{}.{}", name, i), input,
                           one.at(heap(one.bytes(one.taken())), one.taken())});
      }
      if (name == "allreduce")
        comm.grouped_allreduce("group", members, kFormSum).wait();
      else if (name == "allgather")
        comm.grouped_allgather("group", members).wait();
      else
        comm.grouped_reduce_scatter("group", members, kFormSum).wait();
      for (size_t i = 0; i < kMembers; ++i) {
        arrays[i].expect_output(members[i].output);
        arrays[i].expect_input(members[i].input.view());
      }
    }
  }
}

// What means something to the program alone.
struct __attribute__((packed)) Particle {
  int8_t charge;
  int16_t place[3];
  bool operator==(const Particle& other) const {
    return charge == other.charge && std::ranges::equal(place, other.place);
  }
};
static_assert(sizeof(Particle) == 7);

Particle particle(int64_t i) {
  const auto near = static_cast<int16_t>(i % 30'000);
  return {static_cast<int8_t>(i % 100), {near, static_cast<int16_t>(-near), 3}};
}

// All that moves takes bytes, whole rows of them; nothing that reduces does.
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
                  if (std::string_view(kind.name).find("reduce") == std::string_view::npos) {
                    check_places(comm, kind, arrays, std::ref(heap), run);
                    check_places(comm, kind, arrays, std::ref(heap), block);
                    return;
                  }
                  const auto input = arrays.at(heap(arrays.bytes(arrays.given())), arrays.given());
                  const auto output = arrays.at(heap(arrays.bytes(arrays.taken())), arrays.taken());
                  for (const auto& way : {std::function(run), std::function(block)}) {
                    const auto error = error_of([&] { way(input, output); });
                    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
                    EXPECT_NE(std::string_view(error.what()).find("op sum means nothing on raw"),
                              std::string_view::npos)
                        << error.what();
                  }
                });
  expect_still_works(comm);
}

TUTTI_CASE(Forms, StructsThatNoElementFits) {
  // Other numbers of them on each rank, and more than one chunk of shared memory holds.
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
}

TUTTI_CASE(Forms, PointersAndScalars) {
  const auto size = static_cast<size_t>(comm.size());
  const std::vector<double> mine{1.0 * comm.rank(), 2.0};
  std::vector<double> all(2 * size);
  comm.allgather("pointers", {mine.data(), 2}, {all.data(), static_cast<int64_t>(all.size())})
      .wait();
  for (size_t rank = 0; rank < size; ++rank) EXPECT_EQ(all[2 * rank], static_cast<double>(rank));
  double one = comm.rank() == kRoot ? 7.5 : 0;
  comm.broadcast("one", {&one, 1}, kRoot).wait();
  EXPECT_EQ(one, 7.5);
  EXPECT_EQ(comm.broadcast_blocking("number", comm.rank() * 10, kRoot), 10);
  const auto numbers = comm.allgather_blocking("numbers", comm.rank() + 0.5);
  ASSERT_EQ(numbers.size(), size);
  EXPECT_EQ(numbers.back(), static_cast<double>(size) - 0.5);
}

// Each rank sends to the next one, under its own number.
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

}  // namespace
}  // namespace tutti::test
