// Every form in a subset of the ranks, beside a rank that has joined, and after one is lost.
#include <fmt/format.h>

#include <algorithm>

#include "tests/api/forms.h"

namespace tutti::test {
namespace {

const std::vector<int64_t> kFewRows{2, 6'000};

void check_all_forms(Communicator& comm) {
  check_named(comm, kFewRows);
  check_by_handle(comm, kFewRows);
  check_blocking(comm, kFewRows);
  check_groups(comm);
}

TUTTI_CASE(FormsOfSome, InProcessSets) { in_process_set(comm, check_all_forms); }

// Expects an error, and that nothing is written, if the kind needs the joined rank.
void expect_refused_beside_joined(Communicator& comm, const KindForms& kind, const Arrays& arrays,
                                  const std::string& name, const OperationName& called) {
  Heap heap;
  const auto input = arrays.at(heap(arrays.bytes(arrays.given())), arrays.given());
  const auto output = arrays.at(heap(arrays.bytes(arrays.taken())), arrays.taken());
  arrays.fill(input);
  std::fill_n(output.data(), output.bytes(), std::byte{0x5a});
  const auto error = error_of([&] { kind.start(comm, called, input, output).wait(); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_EQ(error.what(),
            fmt::format("\"{}\": {} cannot run while rank {} has joined (is out of data); only "
                        "allreduce can. Nothing was changed.",
                        name, kind.name, comm.size() - 1));
  arrays.expect_input(input);
  EXPECT_TRUE(std::all_of(output.data(), output.data() + output.bytes(),
                          [](std::byte byte) { return byte == std::byte{0x5a}; }));
}

// The last rank has joined. An allreduce in each form sums over the other ranks.
void check_allreduces_beside_joined(Communicator& comm) {
  const int others = comm.size() - 1;
  const auto sum = static_cast<float>(others * (others + 1) / 2);
  const std::vector<float> mine(5'000, static_cast<float>(comm.rank() + 1));
  const auto handle = comm.declare("declared", Shape{5'000}, DataType::f32);
  for (int step = 0; step < 4; ++step) {
    std::vector<float> named(5'000), declared(5'000), member(5'000);
    const std::vector<NamedTransfer> group{{"member", mine, member}};
    auto work = comm.grouped_allreduce("group", group, kFormSum);
    comm.allreduce("named", mine, named, kFormSum).wait();
    comm.allreduce(handle, mine, declared, kFormSum).wait();
    work.wait();
    for (const auto* result : {&named, &declared, &member})
      EXPECT_EQ(*result, std::vector<float>(5'000, sum));
  }
}

TUTTI_CASE(FormsOfSome, BesideARankThatHasJoined) {
  if (comm.rank() != comm.size() - 1) {
    for_each_kind(comm, DataType::f32, {2, 6'000},
                  [&](const KindForms& kind, const Arrays& arrays, const std::string& name) {
                    if (std::string_view(kind.name) == "allreduce") return;
                    const auto handle = comm.declare(
                        name, arrays.shape(std::max(arrays.given(), int64_t{1})), DataType::f32);
                    expect_refused_beside_joined(comm, kind, arrays, name, name);
                    expect_refused_beside_joined(comm, kind, arrays, name, handle);
                  });
    check_allreduces_beside_joined(comm);
  }
  comm.join().wait();
  check_all_forms(comm);
}

TUTTI_CASE(FormsOfSome, AfterARankIsLost) {
  const auto all = comm.split(0);
  check_named(*all, kFewRows);
  if (comm.rank() == comm.size() - 1) {
    all->close();
  } else {
    const auto error = error_of([&] { all->barrier("without the last").wait(); });
    EXPECT_EQ(error.code(), ErrorCode::peer_left);
    const auto rest = all->shrink();
    ASSERT_EQ(rest->size(), comm.size() - 1);
    check_all_forms(*rest);
  }
  comm.barrier("all are done").wait();
}

}  // namespace
}  // namespace tutti::test
