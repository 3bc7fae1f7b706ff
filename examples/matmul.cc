// Multiplies two matrices, C = A B, first on one rank alone. Then the rows of A and C are divided
// among all ranks, which gather C at the end. Every rank draws the same random numbers, so no input
// has to be sent. The program prints the rate of both products and checks that the results agree.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"
#include "tutti/tutti.h"

namespace {

struct Settings {
  int64_t size = 512;  // rows and columns of each matrix
  int rounds = 5;
  std::string device = "cpu";
  std::string dtype = "f32";
};

tutti::DataType type_of(const std::string& name) {
  return name == "bf16"  ? tutti::DataType::bf16
         : name == "f16" ? tutti::DataType::f16
                         : tutti::DataType::f32;
}

// Returns rows of a matrix of normal random numbers in the device's memory.
tutti::Tensor drawn(tutti::LayerKernels& kernels, const Settings& s, const char* name,
                    int64_t first, int64_t count) {
  const tutti::Tensor numbers(tutti::Shape{count, s.size}, tutti::DataType::f32);
  tutti::fill_random_normals({.seed = 1, .purpose = tutti::random_purpose(name)},
                             static_cast<uint64_t>(first * s.size), numbers.span<float>());
  const auto there = kernels.upload(numbers);
  if (type_of(s.dtype) == tutti::DataType::f32) return there;
  const auto narrow = kernels.make_tensor(there.shape(), type_of(s.dtype));
  kernels.cast_to(there, narrow);
  return narrow;
}

// Returns rows * B and the operations per second. `columns` holds B's columns as rows.
std::pair<tutti::Tensor, double> multiply(tutti::LayerKernels& kernels, const Settings& s,
                                          const tutti::Tensor& rows, const tutti::Tensor& columns) {
  const auto product =
      kernels.make_tensor(tutti::Shape{rows.shape()[0], s.size}, tutti::DataType::f32);
  auto& runtime = tutti::device_runtime(kernels.device().kind);
  const auto round = [&] { kernels.linear_forward(rows, columns, tutti::TensorView(), product); };
  round();  // the first product is not timed, because it prepares the kernels
  runtime.synchronize(kernels.stream());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < s.rounds; ++i) round();
  runtime.synchronize(kernels.stream());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const double operations = 2.0 * static_cast<double>(rows.count()) * static_cast<double>(s.size);
  return {product, operations * s.rounds / seconds.count()};
}

void run(const Settings& s) {
  // This comes before the ranks meet, so that ranks that share a GPU detect it.
  tutti::device_runtime(tutti::device_of(s.device).kind);
  const auto comm = tutti::Communicator::create();
  const int64_t rank = comm->rank(), size = comm->size();
  if (s.size % size != 0)
    throw tutti::Error(tutti::ErrorCode::invalid_argument,
                       "--size " + std::to_string(s.size) + " cannot be dealt to " +
                           std::to_string(size) + " ranks; give a multiple");
  const auto kernels = tutti::make_layer_kernels(tutti::device_of(s.device));
  const auto columns = drawn(*kernels, s, "B", 0, s.size);
  const int64_t share = s.size / size;

  const auto [part, rate] =
      multiply(*kernels, s, drawn(*kernels, s, "A", rank * share, share), columns);
  const auto gathered = kernels->make_tensor(tutti::Shape{s.size, s.size}, tutti::DataType::f32);
  comm->allgather("C", part, gathered).wait();
  std::vector<double> rates(1, rate);
  comm->allreduce_blocking("rate", rates, tutti::ReduceOp::sum);
  if (rank == 0) {
    const auto [whole, alone] = multiply(*kernels, s, drawn(*kernels, s, "A", 0, s.size), columns);
    const auto one = tutti::on_host(whole), all = tutti::on_host(gathered);
    const bool is_equal =
        std::memcmp(one.data(), all.data(), static_cast<size_t>(one.bytes())) == 0;
    std::printf(
        "C = A B of %lld x %lld, %s on %s: %.4g TFLOP/s alone, %.4g with its rows over "
        "%lld rank%s (%s)\n",
        static_cast<long long>(s.size), static_cast<long long>(s.size), s.dtype.c_str(),
        tutti::to_string(kernels->device()).c_str(), alone * 1e-12, rates[0] * 1e-12,
        static_cast<long long>(size), size == 1 ? "" : "s", comm->backend().c_str());
    double worst = 0;
    for (int64_t i = 0; i < one.count(); ++i)
      worst = std::max(worst, std::abs(double{one.as<float>()[i]} - double{all.as<float>()[i]}));
    std::printf("the results %s (largest difference %.3g)\n",
                is_equal ? "are equal to the bit" : "differ in order of summation", worst);
    if (!(worst <= 1e-3 * static_cast<double>(s.size)))
      throw tutti::Error(tutti::ErrorCode::internal, "the gathered product is another one");
  }
  comm->barrier_blocking();
}

}  // namespace

int main(int count, char** arguments) {
  Settings s;
  CLI::App app("Multiplies matrices on one rank, then with their rows over all ranks of the job.");
  app.add_option("--size", s.size, "rows and columns")->check(CLI::Range(1, 65536));
  app.add_option("--rounds", s.rounds, "products that are timed")->check(CLI::Range(1, 1000000));
  app.add_option("--device", s.device, "where they are multiplied: cpu, cuda, cuda:1");
  app.add_option("--dtype", s.dtype, "of A and B; C is f32")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  CLI11_PARSE(app, count, arguments);
  try {
    run(s);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "matmul: %s\n", error.what());
    return 1;
  }
  return 0;
}
