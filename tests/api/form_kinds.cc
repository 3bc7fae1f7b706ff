// The table of all kinds, and the checks of all their forms.
#include <fmt/format.h>

#include <algorithm>

#include "tests/api/forms.h"
#include "tests/support/bulk.h"

namespace tutti::test {
namespace {

constexpr int64_t kColumns = 3;
constexpr int64_t kPeriod = 7;

double element(int rank, int64_t part, int64_t i) {
  return static_cast<double>((rank + 2 * part + i) % kPeriod);
}
double sum_of(int size, int64_t part, int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += element(rank, part, i);
  return sum;
}
int64_t one(int, int) { return 1; }
int64_t of_each(int, int size) { return size; }
int64_t at_root(int rank, int size) { return rank == size - 1 ? 1 : 0; }
int64_t each_at_root(int rank, int size) { return rank == size - 1 ? size : 0; }
int64_t same(int) { return 0; }
int64_t own_of_output(int rank) { return -rank; }
int64_t own_of_input(int rank) { return rank; }

int root_of(const Communicator& comm) { return comm.size() - 1; }

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
       return comm.reduce(name, in, out, root_of(comm));
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.reduce_blocking(name, in, out, root_of(comm)); }},
    {"broadcast", at_root, one, element,
     [](int, int size, int64_t part, int64_t i) { return element(size - 1, part, i); }, same,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.broadcast(name, in, out, root_of(comm));
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) {
       // The blocking form is in place.
       if (comm.rank() == root_of(comm) && in.view().data() != out.data())
         std::copy_n(in.view().data(), out.bytes(), out.data());
       comm.broadcast_blocking(name, out, root_of(comm));
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
       return comm.gather(name, in, out, root_of(comm));
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.gather_blocking(name, in, out, root_of(comm)); }},
    {"scatter", each_at_root, one, element,
     [](int rank, int size, int64_t, int64_t i) { return element(size - 1, rank, i); },
     own_of_input,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.scatter(name, in, out, root_of(comm));
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.scatter_blocking(name, in, out, root_of(comm)); }},
    {"reduce_scatter", of_each, one, element,
     [](int rank, int size, int64_t, int64_t i) { return sum_of(size, rank, i); }, own_of_input,
     [](Communicator& comm, OperationName name, ConstTensorView in, TensorView out) {
       return comm.reduce_scatter(name, in, out, kFormSum);
     },
     [](Communicator& comm, std::string_view name, const ConstTensorView& in,
        const TensorView& out) { comm.reduce_scatter_blocking(name, in, out, ReduceOp::sum); }},
    // reduce_scatter again, with the result at the beginning of the input, as in MPI.
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

}  // namespace

std::span<const KindForms> all_kinds() { return kKinds; }

// --- arrays --------------------------------------------------------------------------------------

Arrays::Arrays(Communicator& comm, const KindForms& kind, int64_t rows, DataType dtype)
    : comm_(comm),
      kind_(kind),
      rows_(rows),
      dtype_(dtype),
      given_(kind.given(comm.rank(), comm.size())),
      taken_(kind.taken(comm.rank(), comm.size())) {}

Shape Arrays::shape(int64_t parts) const {
  return {parts * rows_, kColumns * static_cast<int64_t>(sizeof(float)) / size_of(dtype_)};
}

void Arrays::fill_parts(const TensorView& view, int64_t parts, const Element& element) const {
  const int64_t count = rows_ * kColumns;
  const std::span<float> all(reinterpret_cast<float*>(view.data()),
                             static_cast<size_t>(parts * count));
  for (int64_t part = 0; part < parts; ++part) {
    std::vector<float> cycle;
    for (int64_t i = 0; i < kPeriod; ++i) cycle.push_back(static_cast<float>(element(part, i)));
    fill_cycle(all.subspan(static_cast<size_t>(part * count), static_cast<size_t>(count)), cycle);
  }
}

void Arrays::expect_parts(const char* what, const TensorView& view, int64_t parts,
                          const Element& element) const {
  std::vector<std::byte> expected(static_cast<size_t>(bytes(parts)));
  fill_parts(at(expected.data(), parts), parts, element);
  EXPECT_TRUE(same({view.data(), expected.size()}, expected))
      << what << " on rank " << comm_.rank() << ", " << sizeof(float) << " bytes an element";
}

void Arrays::fill(const TensorView& input) const {
  fill_parts(input, given_,
             [&](int64_t part, int64_t i) { return kind_.input(comm_.rank(), part, i); });
}

void Arrays::expect_input(const TensorView& input) const {
  expect_parts("input", input, given_,
               [&](int64_t part, int64_t i) { return kind_.input(comm_.rank(), part, i); });
}

void Arrays::expect_output(const TensorView& output) const {
  expect_parts("output", output, taken_, [&](int64_t part, int64_t i) {
    return kind_.output(comm_.rank(), comm_.size(), part, i);
  });
}

std::byte* Heap::operator()(int64_t bytes) {
  kept_.emplace_back(Shape{std::max<int64_t>(bytes, 1)}, DataType::u8);
  return kept_.back().data();
}

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

void for_each_kind(Communicator& comm, DataType dtype, const std::vector<int64_t>& row_counts,
                   const FormBody& body) {
  int number = 0;
  for (const auto& kind : kKinds)
    for (const int64_t rows : row_counts) {
      const auto name = fmt::format("{} {} {} {}", kind.name, number++, to_string(dtype), rows);
      SCOPED_TRACE(name);
      body(kind, Arrays(comm, kind, rows, dtype), name);
      if (testing::Test::HasFailure()) return;
    }
}

// --- forms ---------------------------------------------------------------------------------------

void check_named(Communicator& comm, const std::vector<int64_t>& row_counts) {
  for_each_kind(comm, DataType::f32, row_counts,
                [&](const KindForms& kind, const Arrays& arrays, const std::string& name) {
                  Heap heap;
                  check_places(comm, kind, arrays, std::ref(heap),
                               [&](ConstTensorView in, TensorView out) {
                                 kind.start(comm, name, in, out).wait();
                               });
                });
}

void check_by_handle(Communicator& comm, const std::vector<int64_t>& row_counts) {
  for_each_kind(
      comm, DataType::f32, row_counts,
      [&](const KindForms& kind, const Arrays& arrays, const std::string& name) {
        Heap heap;
        const auto handle =
            comm.declare(name, arrays.shape(std::max(arrays.given(), int64_t{1})), DataType::f32);
        for (int step = 0; step < 6; ++step)
          check_places(comm, kind, arrays, std::ref(heap), [&](ConstTensorView in, TensorView out) {
            kind.start(comm, handle, in, out).wait();
          });
      });
}

void check_blocking(Communicator& comm, const std::vector<int64_t>& row_counts) {
  for_each_kind(comm, DataType::f32, row_counts,
                [&](const KindForms& kind, const Arrays& arrays, const std::string& name) {
                  Heap heap;
                  check_places(
                      comm, kind, arrays, std::ref(heap),
                      [&](ConstTensorView in, TensorView out) { kind.block(comm, name, in, out); });
                });
}

void check_groups(Communicator& comm) {
  constexpr size_t kMembers = 5;
  for (const auto& kind : all_kinds()) {
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

}  // namespace tutti::test
