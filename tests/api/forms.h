#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/api/case.h"

// The table of all kinds, and arrays with known contents, which the cases of forms share.

namespace tutti::test {

/// One kind, applied to parts of `rows` rows of three elements. The root is the last rank.
struct KindForms {
  const char* name;
  // The input's and the output's size in parts; 0 if this rank has none.
  int64_t (*given)(int rank, int size);
  int64_t (*taken)(int rank, int size);
  // Return element i of a part. The elements repeat after seven.
  double (*input)(int rank, int64_t part, int64_t i);
  double (*output)(int rank, int size, int64_t part, int64_t i);
  // Returns where input and output may share memory: the offset, in parts, of the output in the
  // input. A negative value is that of the input in the output.
  int64_t (*in_place)(int rank);
  Work (*start)(Communicator&, OperationName, ConstTensorView, TensorView);
  void (*block)(Communicator&, std::string_view, const ConstTensorView&, const TensorView&);

  bool reduces() const { return std::string_view(name).find("reduce") != std::string_view::npos; }
};
/// Returns all kinds but send and recv. reduce_scatter is listed twice, because its output may lie
/// in two places.
std::span<const KindForms> all_kinds();
inline const ReduceOptions kFormSum{.op = ReduceOp::sum};

/// The contents of one rank's arrays for one kind, wherever they lie.
class Arrays {
 public:
  Arrays(Communicator& comm, const KindForms& kind, int64_t rows, DataType dtype);

  /// The elements are floats even if the dtype is raw bytes.
  Shape shape(int64_t parts) const;
  int64_t bytes(int64_t parts) const { return shape(parts).count() * size_of(dtype_); }
  int64_t given() const { return given_; }  // parts of input
  int64_t taken() const { return taken_; }  // parts of output
  TensorView at(std::byte* data, int64_t parts) const { return {data, shape(parts), dtype_}; }

  void fill(const TensorView& input) const;
  void expect_input(const TensorView& input) const;
  void expect_output(const TensorView& output) const;

 private:
  using Element = std::function<double(int64_t part, int64_t i)>;
  void fill_parts(const TensorView& view, int64_t parts, const Element& element) const;
  void expect_parts(const char* what, const TensorView& view, int64_t parts,
                    const Element& element) const;

  Communicator& comm_;
  const KindForms& kind_;
  const int64_t rows_;
  const DataType dtype_;
  const int64_t given_, taken_;
};

using Memory = std::function<std::byte*(int64_t bytes)>;
/// Allocates heap memory that lives as long as this object.
class Heap {
 public:
  std::byte* operator()(int64_t bytes);

 private:
  std::vector<Tensor> kept_;
};

/// Calls `run` with separate and with shared input and output, in memory from `memory`.
void check_places(Communicator& comm, const KindForms& kind, const Arrays& arrays,
                  const Memory& memory,
                  const std::function<void(ConstTensorView, TensorView)>& run);

using FormBody = std::function<void(const KindForms&, const Arrays&, const std::string& name)>;
/// Calls `body` for each kind and number of rows, each under its own name.
void for_each_kind(Communicator& comm, DataType dtype, const std::vector<int64_t>& row_counts,
                   const FormBody& body);

/// Check every form of every kind. Each leaves the communicator usable for the next.
void check_named(Communicator& comm, const std::vector<int64_t>& row_counts);
void check_by_handle(Communicator& comm, const std::vector<int64_t>& row_counts);
void check_blocking(Communicator& comm, const std::vector<int64_t>& row_counts);
void check_groups(Communicator& comm);

}  // namespace tutti::test
