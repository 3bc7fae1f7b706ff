#include "tutti/adapters/exchange/adasum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tutti {

namespace {

size_t products_of(size_t ranks) { return ranks * (ranks + 1) / 2; }

// Inner products of vectors that are linear combinations of the ranks' vectors.
class InnerProducts {
 public:
  InnerProducts(std::span<const double> products, size_t ranks)
      : products_(products), ranks_(ranks) {}
  double of(const std::vector<double>& a, const std::vector<double>& b) const {
    double sum = 0;
    for (size_t i = 0; i < ranks_; ++i)
      for (size_t j = 0; j < ranks_; ++j)
        // A rank with a factor of 0 is skipped, because its product may be infinite.
        if (a[i] != 0 && b[j] != 0) sum += a[i] * b[j] * at(std::min(i, j), std::max(i, j));
    return sum;
  }

 private:
  double at(size_t row, size_t column) const {
    return products_[row * ranks_ - row * (row + 1) / 2 + column];
  }
  std::span<const double> products_;
  size_t ranks_;
};

// Returns the factor of a vector in the combination. It is 1 if the vector is too short to divide
// by.
double share_left(double with_the_other, double with_itself) {
  static const double kShortest = std::sqrt(std::numeric_limits<double>::min());
  return with_itself < kShortest ? 1.0 : 1.0 - with_the_other / (2 * with_itself);
}

std::vector<double> combine_ranks(const InnerProducts& products, size_t ranks, size_t begin,
                                  size_t end) {
  std::vector<double> factors(ranks, 0.0);
  if (end - begin == 1) {
    factors[begin] = 1;
    return factors;
  }
  const size_t middle = begin + (end - begin + 1) / 2;
  const auto a = combine_ranks(products, ranks, begin, middle);
  const auto b = combine_ranks(products, ranks, middle, end);
  const double ab = products.of(a, b);
  const double left_of_a = share_left(ab, products.of(a, a));
  const double left_of_b = share_left(ab, products.of(b, b));
  for (size_t rank = begin; rank < end; ++rank)
    factors[rank] = rank < middle ? a[rank] * left_of_a : b[rank] * left_of_b;
  return factors;
}

// The elements of one rank's share that belong to one tensor, counted from the share's begin.
struct Stretch {
  int64_t begin, end;
};

template <class T>
void add_products(const T* vectors, int64_t share, size_t ranks, Stretch stretch,
                  double* products) {
  for (size_t i = 0; i < ranks; ++i)
    for (size_t j = i; j < ranks; ++j) {
      const T *a = vectors + static_cast<int64_t>(i) * share,
              *b = vectors + static_cast<int64_t>(j) * share;
      double sum = 0;
      for (int64_t k = stretch.begin; k < stretch.end; ++k)
        sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
      *products++ = sum;
    }
}

template <class T>
void combine_stretch(const T* vectors, int64_t share, std::span<const double> factors,
                     Stretch stretch, T* output) {
  for (int64_t k = stretch.begin; k < stretch.end; ++k) {
    double sum = 0;
    for (size_t i = 0; i < factors.size(); ++i)
      sum += factors[i] * static_cast<double>(vectors[static_cast<int64_t>(i) * share + k]);
    output[k] = static_cast<T>(sum);
  }
}

}  // namespace

std::vector<double> adasum_factors(std::span<const double> products, int ranks) {
  const auto count = static_cast<size_t>(ranks);
  return combine_ranks(InnerProducts(products, count), count, 0, count);
}

Adasum::Adasum(Communicator& comm, std::string name, std::vector<TensorView> tensors)
    : comm_(comm), name_(std::move(name)), tensors_(std::move(tensors)), begins_(1, 0) {
  for (const auto& tensor : tensors_) {
    if ((tensor.dtype() != DataType::f32 && tensor.dtype() != DataType::f64) ||
        tensor.device().kind != DeviceKind::cpu)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("Adasum combines tensors of f32 or f64 in host memory, got {} on {}; "
                              "average them instead",
                              to_string(tensor.dtype()), to_string(tensor.device())));
    if (tensor.dtype() != tensors_.front().dtype())
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("Adasum combines tensors of one type, got {} and {}; cast one of them",
                      to_string(tensors_.front().dtype()), to_string(tensor.dtype())));
    begins_.push_back(begins_.back() + tensor.count());
  }
  const int64_t count = begins_.back(), size = comm_.size();
  for (int64_t rank = 0; rank < size; ++rank)
    shares_.push_back(count * (rank + 1) / size - count * rank / size);
  if (!tensors_.empty()) all_ = Tensor(Shape{count}, tensors_.front().dtype());
}

void Adasum::combine() {
  if (begins_.back() == 0 || comm_.size() == 1) return;
  const auto ranks = shares_.size();
  std::byte* place = all_.data();
  for (const auto& tensor : tensors_) {
    std::memcpy(place, tensor.data(), static_cast<size_t>(tensor.bytes()));
    place += tensor.bytes();
  }
  auto scattered = comm_.alltoall(name_ + " shares", all_, shares_);
  const Tensor vectors = scattered.output();

  const auto rank = static_cast<size_t>(comm_.rank());
  const int64_t share = shares_[rank];
  const int64_t first = begins_.back() * comm_.rank() / comm_.size();
  const auto stretch_of = [&](size_t tensor) {
    return Stretch{std::clamp(begins_[tensor] - first, int64_t{0}, share),
                   std::clamp(begins_[tensor + 1] - first, int64_t{0}, share)};
  };
  const auto with_type = [&](const auto& body) {
    if (all_.dtype() == DataType::f64)
      body(double{});
    else
      body(float{});
  };
  const size_t each = products_of(ranks);
  std::vector<double> products(tensors_.size() * each, 0.0);
  with_type([&]<class T>(T) {
    for (size_t i = 0; i < tensors_.size(); ++i)
      add_products(vectors.as<T>(), share, ranks, stretch_of(i), products.data() + i * each);
  });
  comm_.allreduce(name_ + " products", products, ReduceOp::sum).wait();

  const Tensor combined(Shape{share}, all_.dtype());
  with_type([&]<class T>(T) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const auto factors =
          adasum_factors(std::span(products).subspan(i * each, each), static_cast<int>(ranks));
      combine_stretch(vectors.as<T>(), share, factors, stretch_of(i), combined.as<T>());
    }
  });
  comm_.allgather(name_ + " combined", combined, all_).wait();
  place = all_.data();
  for (const auto& tensor : tensors_) {
    std::memcpy(tensor.data(), place, static_cast<size_t>(tensor.bytes()));
    place += tensor.bytes();
  }
}

}  // namespace tutti
