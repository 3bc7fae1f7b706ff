// The process group of c10d's C++ interface: its calls on ranks that are threads, and what it
// refuses.

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
// Another LibTorch's may be where the compiler looks last.
#if TORCH_VERSION_MAJOR < 2 && __has_include(<torch/csrc/distributed/c10d/Ops.hpp>)
#include <torch/csrc/distributed/c10d/Ops.hpp>
#define TUTTI_TEST_OPS 1
#endif
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/torch/process_group.h"

namespace {

using tutti::Communicator;
using tutti::ErrorCode;
using tutti::test::expect_error;
using tutti::test::expect_refused;
using tutti::test::run_threads;
using tutti::torch::ProcessGroup;
using Group = c10::intrusive_ptr<ProcessGroup>;
using Tensors = std::vector<torch::Tensor>;
using Lists = std::vector<Tensors>;
using c10d::ReduceOp;

#if TORCH_VERSION_MAJOR < 2
ReduceOp pre_mul_sum(double factor) { return c10d::makeNCCLPreMulSum(factor); }
#else
ReduceOp pre_mul_sum(double factor) { return c10d::makePreMulSum(factor); }
#endif

// Over a communicator that somebody else owns.
Group group_over(Communicator& comm) {
  return c10::make_intrusive<ProcessGroup>(
      std::shared_ptr<Communicator>(std::shared_ptr<void>(), &comm));
}

void run_groups(int ranks, const std::function<void(const Group&, int rank)>& body) {
  run_threads(ranks, [&](Communicator& comm) { body(group_over(comm), comm.rank()); });
}

void expect_equal(const torch::Tensor& got, const torch::Tensor& expected) {
  EXPECT_TRUE(torch::equal(got, expected)) << got << "\nwhere expected\n" << expected;
}

torch::Tensor reduced(const Group& group, torch::Tensor tensor, const ReduceOp& op) {
  Tensors tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  EXPECT_TRUE(group->allreduce(tensors, options)->wait());
  return tensors[0];
}

TEST(TorchC10d, AllreduceByEveryOperator) {
  run_groups(2, [](const Group& group, int rank) {
    const auto of = [&](int64_t first, int64_t second) {
      return torch::tensor(std::vector<int64_t>{rank == 0 ? first : second, 6});
    };
    expect_equal(reduced(group, of(3, 5), ReduceOp::SUM), torch::tensor({8, 12}, torch::kLong));
    expect_equal(reduced(group, of(3, 5), ReduceOp::AVG), torch::tensor({4, 6}, torch::kLong));
    expect_equal(reduced(group, of(3, 5), ReduceOp::MIN), torch::tensor({3, 6}, torch::kLong));
    expect_equal(reduced(group, of(3, 5), ReduceOp::MAX), torch::tensor({5, 6}, torch::kLong));
    expect_equal(reduced(group, of(3, 5), ReduceOp::PRODUCT),
                 torch::tensor({15, 36}, torch::kLong));
    expect_equal(reduced(group, of(3, 5), ReduceOp::BAND), torch::tensor({1, 6}, torch::kLong));
    expect_equal(reduced(group, of(3, 5), ReduceOp::BOR), torch::tensor({7, 6}, torch::kLong));
    expect_equal(reduced(group, of(3, 5), ReduceOp::BXOR), torch::tensor({6, 0}, torch::kLong));
    expect_equal(reduced(group, torch::full({3}, rank + 1.0), pre_mul_sum(0.5)),
                 torch::full({3}, 1.5));
  });
}

// Elements travel in row-major order, whatever the strides on each rank.
TEST(TorchC10d, AnyDenseStridesAndTypes) {
  run_groups(2, [](const Group& group, int rank) {
    const auto rows = torch::arange(24, torch::kFloat).view({2, 3, 2, 2});
    auto tensor =
        rows.clone(rank == 0 ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast);
    expect_equal(reduced(group, tensor, ReduceOp::SUM), rows * 2);
    expect_equal(tensor, rows * 2);
    for (const auto type :
         {torch::kHalf, torch::kBFloat16, torch::kDouble, torch::kByte, torch::kInt})
      expect_equal(reduced(group, torch::full({5}, rank + 1, type), ReduceOp::SUM),
                   torch::full({5}, 3, type));
    Tensors complex{torch::full({2}, c10::complex<double>(rank, 1), torch::kComplexDouble)};
    c10d::BroadcastOptions from;
    from.rootRank = 1;
    group->broadcast(complex, from)->wait();
    expect_equal(complex[0], torch::full({2}, c10::complex<double>(1, 1), torch::kComplexDouble));
  });
}

TEST(TorchC10d, CoalescedCallsAreOne) {
  run_groups(2, [](const Group& group, int rank) {
    Tensors tensors{torch::full({3}, rank + 1), torch::full({2, 2}, 10.0 * rank).t()};
    group->allreduce_coalesced(tensors)->wait();
    expect_equal(tensors[0], torch::full({3}, 3));
    expect_equal(tensors[1], torch::full({2, 2}, 10.0));
    Tensors none;
    EXPECT_TRUE(group->allreduce_coalesced(none)->isCompleted());

    Lists outputs{{torch::zeros(1), torch::zeros(2)}, {torch::zeros(1), torch::zeros(2)}};
    Tensors inputs{torch::full({1}, float(rank)), torch::full({2}, rank + 5.0f)};
    group->allgather_coalesced(outputs, inputs)->wait();
    expect_equal(outputs[1][0], torch::full({1}, 1.0f));
    expect_equal(outputs[0][1], torch::full({2}, 5.0f));
    Tensors wide{torch::zeros(2), torch::zeros(4)};
    group->allgather_into_tensor_coalesced(wide, inputs)->wait();
    expect_equal(wide[1], torch::tensor({5.0f, 5.0f, 6.0f, 6.0f}));
  });
}

TEST(TorchC10d, GathersAndScatters) {
  constexpr int kRanks = 3;
  run_groups(kRanks, [](const Group& group, int rank) {
    // As many elements as the rank's number, and one.
    Tensors own{torch::full({rank + 1}, float(rank))};
    Lists outputs{{torch::zeros(1), torch::zeros(2), torch::zeros(3)}};
    const auto work = group->allgather(outputs, own);
    EXPECT_TRUE(work->wait());
    for (int from = 0; from < kRanks; ++from)
      expect_equal(outputs[0][size_t(from)], torch::full({from + 1}, float(from)));
    EXPECT_EQ(work->result().size(), size_t(kRanks));

    auto input = torch::full({2}, rank), all = torch::zeros({6}, torch::kLong);
    group->_allgather_base(all, input)->wait();
    expect_equal(all, torch::tensor({0, 0, 1, 1, 2, 2}, torch::kLong));

    c10d::GatherOptions to;
    to.rootRank = 2;
    Lists gathered;
    if (rank == 2) gathered = {{torch::zeros(1), torch::zeros(2), torch::zeros(3)}};
    group->gather(gathered, own, to)->wait();
    if (rank == 2) expect_equal(gathered[0][1], torch::full({2}, 1.0f));

    c10d::ScatterOptions from;
    from.rootRank = 1;
    Lists dealt;
    if (rank == 1)
      dealt = {{torch::full({1}, 7.0f), torch::full({2}, 8.0f), torch::full({3}, 9.0f)}};
    Tensors part{torch::zeros(rank + 1)};
    group->scatter(part, dealt, from)->wait();
    expect_equal(part[0], torch::full({rank + 1}, 7.0f + float(rank)));
    EXPECT_TRUE(group->barrier()->wait());
  });
}

TEST(TorchC10d, ReducesToOneRankAndToAll) {
  run_groups(2, [](const Group& group, int rank) {
    Tensors tensors{torch::full({4}, rank + 1)};
    c10d::ReduceOptions to;
    to.rootRank = 1;
    group->reduce(tensors, to)->wait();
    if (rank == 1) expect_equal(tensors[0], torch::full({4}, 3));

    Lists inputs{{torch::full({1}, rank + 1), torch::full({2}, rank + 5)}};
    Tensors output{torch::zeros({rank + 1}, torch::kLong)};
    group->reduce_scatter(output, inputs)->wait();
    expect_equal(output[0], torch::full({rank + 1}, rank == 0 ? 3 : 11));

    auto whole = torch::arange(6, torch::kFloat) * (rank + 1), share = torch::zeros(3);
    group->_reduce_scatter_base(share, whole)->wait();
    expect_equal(share, (torch::arange(3, torch::kFloat) + 3.0f * float(rank)) * 3);
  });
}

TEST(TorchC10d, Alltoall) {
  run_groups(2, [](const Group& group, int rank) {
    // Rank r sends r + 1 rows to rank 0 and one to rank 1.
    std::vector<int64_t> sent{rank + 1, 1}, expected{1, rank == 0 ? 2 : 1};
    auto input = torch::full({rank + 2, 2}, rank),
         output = torch::zeros({rank == 0 ? 3 : 2, 2}, torch::kLong);
    group->alltoall_base(output, input, expected, sent)->wait();
    expect_equal(output.select(1, 0), rank == 0 ? torch::tensor({0, 1, 1}, torch::kLong)
                                                : torch::tensor({0, 1}, torch::kLong));
    std::vector<int64_t> equal;
    auto from = torch::arange(4, torch::kFloat) + 10 * rank, to = torch::zeros(4);
    group->alltoall_base(to, from, equal, equal)->wait();
    expect_equal(to, rank == 0 ? torch::tensor({0.f, 1.f, 10.f, 11.f})
                               : torch::tensor({2.f, 3.f, 12.f, 13.f}));
    Tensors inputs{torch::full({1}, rank), torch::full({2}, rank + 5)};
    Tensors outputs{torch::zeros({rank + 1}, torch::kLong), torch::zeros({rank + 1}, torch::kLong)};
    group->alltoall(outputs, inputs)->wait();
    expect_equal(outputs[1], torch::full({rank + 1}, rank == 0 ? 1 : 6));
  });
}

TEST(TorchC10d, MessagesAreMatchedByPeerTagAndOrder) {
  run_groups(2, [](const Group& group, int rank) {
    Tensors first{torch::full({2}, 1.0f)}, second{torch::full({3}, 2.0f)};
    if (rank == 0) {
      const auto one = group->send(first, 1, 7);
      const auto two = group->send(second, 1, 7);
      EXPECT_TRUE(one->wait() && two->wait());
      return;
    }
    Tensors to_first{torch::zeros(2)}, to_second{torch::zeros(3)};
    const auto one = group->recv(to_first, 0, 7);
    const auto two = group->recv(to_second, 0, 7);
    EXPECT_TRUE(two->wait() && one->wait());
    expect_equal(to_first[0], first[0]);
    expect_equal(to_second[0], second[0]);
  });
}

// The way through torch's dispatcher: its ops, or from 2.0 on the methods of its process group.
template <class Whole>
auto dispatched_allreduce(const c10::intrusive_ptr<Whole>& whole, Tensors& tensors) {
#ifdef TUTTI_TEST_OPS
  return c10d::ops::allreduce(whole, tensors);
#else
  return whole->allreduce(tensors);
#endif
}
template <class Whole>
auto dispatched_barrier(const c10::intrusive_ptr<Whole>& whole) {
#ifdef TUTTI_TEST_OPS
  return c10d::ops::barrier(whole);
#else
  return whole->barrier();
#endif
}

// With a Future that nobody drives, and Works that nobody keeps.
TEST(TorchC10d, TorchsDispatcherAndFutures) {
  run_groups(2, [](const Group& group, int rank) {
    const auto whole = tutti::torch::process_group(group);
    Tensors tensors{torch::full({3}, rank + 1.0f)};
    const auto future = dispatched_allreduce(whole, tensors)->getFuture();
    const auto doubled = future->then(
        [](c10::ivalue::Future& done) { return c10::IValue(done.value().toTensorVector()[0] * 2); },
        c10::TensorType::get());
    doubled->wait();
    expect_equal(doubled->value().toTensor(), torch::full({3}, 6.0f));
    for (int i = 0; i < 500; ++i) {
      Tensors dropped{torch::ones({8})};
      dispatched_allreduce(whole, dropped);
    }
    const auto work = dispatched_barrier(whole);
    EXPECT_TRUE(work->wait());
    EXPECT_TRUE(work->isCompleted() && work->isSuccess());
  });
}

// The ranks meet in torch's store, once and again; two groups cross each other.
void meet(const std::function<c10::intrusive_ptr<c10d::Store>(int rank)>& store) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const auto own = store(rank);
      for (int time = 0; time < 2; ++time) {
        const auto a = ProcessGroup::create(own, rank, 2, "a", std::chrono::seconds(30));
        const auto b = ProcessGroup::create(own, rank, 2, "b", std::chrono::seconds(30));
        Tensors in_a{torch::full({2}, rank + 1)}, in_b{torch::full({2}, rank + 10)};
        const auto first = (rank == 0 ? a : b)->allreduce(rank == 0 ? in_a : in_b);
        const auto second = (rank == 0 ? b : a)->allreduce(rank == 0 ? in_b : in_a);
        EXPECT_TRUE(second->wait() && first->wait());
        expect_equal(in_a[0], torch::full({2}, 3));
        expect_equal(in_b[0], torch::full({2}, 21));
        EXPECT_EQ(a->getSequenceNumberForGroup(), 1u);
      }
    });
  for (auto& rank : ranks) rank.join();
}
TEST(TorchC10d, RanksMeetInAStoreOfTorchs) {
  const auto in_memory = c10::make_intrusive<c10d::HashStore>();
  meet([&](int) { return in_memory; });
  c10d::TCPStoreOptions serving;
  serving.port = 0;
  serving.isServer = true;
  serving.waitWorkers = false;
  const auto served = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", serving);
  meet([&](int rank) {
    if (rank == 0) return served;
    c10d::TCPStoreOptions other;
    other.port = served->getPort();
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", other);
  });
}

// The lines of docs/pytorch.md, on one rank.
TEST(TorchC10d, ThePagesLines) {
  const std::string host = "127.0.0.1";
  const int rank = 0, size = 1;
  Tensors tensors{torch::ones(3)};
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  auto store = c10::make_intrusive<c10d::TCPStore>(host, options);  // any store of torch's
  auto group = tutti::torch::ProcessGroup::create(store, rank, size);
  group->allreduce(tensors)->wait();
  expect_equal(tensors[0], torch::ones(3));
  EXPECT_EQ(group->getBackendName(), "tutti");
}

// --- bad input ---

TEST(TorchC10dBadInput, IsRefusedInOneLine) {
  run_groups(2, [](const Group& group, int) {
    Tensors two{torch::ones(1), torch::ones(1)}, none, one{torch::ones(4)};
    Tensors gaps{torch::ones({4, 4}).narrow(1, 0, 2)}, sparse{torch::ones({2, 2}).to_sparse()};
    Tensors complex{torch::ones(1, torch::kComplexFloat)}, undefined{torch::Tensor()};
    expect_refused("got 2 tensors, want one a rank; call it for each of them",
                   [&] { group->allreduce(two); });
    expect_refused("allreduce on rank", [&] { group->allreduce(none); });
    expect_refused(
        "of shape [4,2] whose strides [4,1] leave gaps or overlap; pass its contiguous()",
        [&] { group->allreduce(gaps); });
    expect_refused("got a sparse tensor on cpu, want a dense one in host memory",
                   [&] { group->broadcast(sparse); });
    expect_refused("got an undefined tensor", [&] { group->broadcast(undefined); });
    expect_refused("tensors of ComplexFloat can be moved but not reduced",
                   [&] { group->allreduce(complex); });
    c10d::AllreduceOptions unknown, nothing;
    unknown.reduceOp = ReduceOp::UNUSED;
    nothing.reduceOp = pre_mul_sum(0.0);
    expect_refused("is not served; allgather, and reduce the result",
                   [&] { group->allreduce(one, unknown); });
    expect_refused("PREMUL_SUM takes a number other than 0 for its factor",
                   [&] { group->allreduce(one, nothing); });
    c10d::ReduceOptions scaled;
    scaled.reduceOp = pre_mul_sum(2.0);
    expect_refused("PREMUL_SUM is served by allreduce only", [&] { group->reduce(one, scaled); });
    c10d::BroadcastOptions from;
    from.rootRank = 2;
    expect_refused("its root 2 is no rank of a group of 2", [&] { group->broadcast(one, from); });
    expect_refused("is no other rank of a group of 2", [&] { group->send(one, 5, 0); });
    expect_refused("is no other rank of a group of 2", [&] { group->recv(one, -1, 0); });
  });
}

TEST(TorchC10dBadInput, ShapesThatDoNotFitAreRefused) {
  run_groups(2, [](const Group& group, int) {
    Tensors one{torch::ones(4)};
    Lists short_list{{torch::ones(4)}}, many(2, one);
    expect_refused("got 1 tensors, want one for each of 2 ranks",
                   [&] { group->allgather(short_list, one); });
    expect_refused("got 2 lists of tensors, want one a rank", [&] { group->allgather(many, one); });
    Lists mixed{{torch::ones(4), torch::ones(4, torch::kInt)}};
    expect_refused("tensors of Float and Int came together, want one type",
                   [&] { group->allgather(mixed, one); });
    auto input = torch::ones(3), output = torch::ones(8), whole = torch::ones(3, torch::kInt);
    expect_refused("its input has 3 elements where its output has room for 4",
                   [&] { group->_allgather_base(output, input); });
    auto two = torch::ones(6);
    expect_refused("its input has elements of Int and its output of Float",
                   [&] { group->_allgather_base(two, whole); });
    Tensors inputs{input}, outputs;
    expect_refused("got 1 inputs for 0 outputs",
                   [&] { group->allgather_into_tensor_coalesced(outputs, inputs); });
    expect_refused("got 0 lists of outputs, want one for each of 2 ranks", [&] {
      Lists lists;
      group->allgather_coalesced(lists, inputs);
    });
    expect_refused("a list of outputs has 0 tensors where 1 inputs came", [&] {
      Lists lists(2);
      group->allgather_coalesced(lists, inputs);
    });
    std::vector<int64_t> equal, wrong{1, 1};
    expect_refused("its input has 3 rows, which 2 ranks cannot share equally; give splits",
                   [&] { group->alltoall_base(output, input, equal, equal); });
    expect_refused("the output splits [1,1] do not deal 8 rows to 2 ranks",
                   [&] { group->alltoall_base(output, output, wrong, equal); });
  });
}

// The calls before the one that is refused go on, in memory that nobody else holds.
TEST(TorchC10dBadInput, OfSeveralCallsTheLastIsRefused) {
  run_groups(2, [](const Group& group, int) {
    const auto strided = [](int64_t rows) { return torch::zeros({4, rows}).t(); };
    for (int i = 0; i < 5; ++i) {
      Tensors inputs{torch::ones({3, 4}), torch::ones(3)};
      Tensors outputs{strided(6), torch::zeros(8)};
      expect_refused("its input has 3 elements where its output has room for 4",
                     [&] { group->allgather_into_tensor_coalesced(outputs, inputs); });
      Lists lists{{strided(3), torch::zeros(4)}, {strided(3), torch::zeros(4)}};
      expect_refused("its input has 3 elements where its output has room for 4",
                     [&] { group->allgather_coalesced(lists, inputs); });
    }
    Tensors tensors{torch::ones(3)};
    group->allreduce(tensors)->wait();
    EXPECT_TRUE(torch::equal(tensors[0], torch::full(3, 2.0)));
  });
}

TEST(TorchC10dBadInput, WhatRanksDisagreeOnIsToldByWait) {
  run_groups(2, [](const Group& group, int rank) {
    Tensors tensors{torch::ones(rank + 3)};
    const auto work = group->allreduce(tensors);
    expect_error(ErrorCode::mismatch, "group 0/0", [&] { work->wait(); });
    EXPECT_TRUE(work->isCompleted() && !work->isSuccess() && work->exception() != nullptr);
    EXPECT_TRUE(work->getFuture()->hasError());
    // Rank 0 sends as many as rank 1 expects, but not to whom.
    std::vector<int64_t> sent{1, 1}, expected = rank == 0 ? std::vector<int64_t>{2, 0} : sent;
    auto input = torch::ones(2), output = torch::ones(2);
    const auto exchange = group->alltoall_base(output, input, expected, sent);
    if (rank == 0)
      expect_error(ErrorCode::mismatch, "the output splits must be the other ranks' input splits",
                   [&] { exchange->wait(); });
    else
      exchange->wait();
    Tensors good{torch::ones(1)};
    EXPECT_TRUE(group->allreduce(good)->wait());
  });
}

TEST(TorchC10dBadInput, WaitingEnds) {
  run_groups(2, [](const Group& group, int rank) {
    Tensors tensors{torch::ones(1)};
    if (rank == 0) {
      const auto work = group->allreduce(tensors);
      expect_error(ErrorCode::timeout, "was not done when the deadline of wait() passed",
                   [&] { work->wait(std::chrono::milliseconds(100)); });
      group->barrier();
      EXPECT_TRUE(work->wait());
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      EXPECT_TRUE(group->allreduce(tensors)->wait());
      group->barrier();
    }
  });
  std::atomic<bool> is_over{false};
  run_groups(2, [&](const Group& group, int rank) {
    const auto deadline = tutti::Deadline::after(20);
    while (rank == 1 && !is_over && !deadline.passed()) std::this_thread::yield();
    if (rank == 1) return;
    Tensors tensors{torch::ones(1)};
    const auto future = group->allreduce(tensors)->getFuture();
    group->abort();
    future->wait();
    ASSERT_TRUE(future->hasError());
    expect_error(ErrorCode::closed, "", [&] { std::rethrow_exception(future->exception_ptr()); });
    EXPECT_ANY_THROW(group->allreduce(tensors));
    is_over = true;
  });
}

}  // namespace
