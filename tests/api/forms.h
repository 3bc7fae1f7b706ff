#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/api/case.h"

// What the cases of forms share: each kind as a row of a table, and arrays whose contents are
// known.

namespace tutti::test {

/// What one kind does with rows of three elements. `rows`: of a part. The root is the last rank.
struct KindForms {
  const char* name;
  // Of input and output in parts; 0: this rank has none.
  int64_t (*given)(int rank, int size);
  int64_t (*taken)(int rank, int size);
  // Element i of a part; what seven of them hold comes again in all others.
  double (*input)(int rank, int64_t part, int64_t i);
  double (*output)(int rank, int size, int64_t part, int64_t i);
  // Where the two may share memory: the output's beginning in the input in parts (negative: the
  // input's in the output).
  int64_t (*in_place)(int rank);
  Work (*start)(Communicator&, OperationName, ConstTensorView, TensorView);
  void (*block)(Communicator&, std::string_view, const ConstTensorView&, const TensorView&);

  bool reduces() const { return std::string_view(name).find("reduce") != std::string_view::npos; }
};
/// All but send and recv; reduce_scatter twice, for it has two places.
std::span<const KindForms> all_kinds();
inline const ReduceOptions kFormSum{.op = ReduceOp::sum};

/// One rank's arrays of one kind, wherever they lie.
class Arrays {
 public:
  Arrays(Communicator& comm, const KindForms& kind, int64_t rows, DataType dtype);

  /// As raw bytes, too, the elements are floats.
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
/// Heap memory that lives as long as this.
class Heap {
 public:
  std::byte* operator()(int64_t bytes);

 private:
  std::vector<Tensor> kept_;
};

/// Out of place and in place, by `run`, in memory from `memory`.
void check_places(Communicator& comm, const KindForms& kind, const Arrays& arrays,
                  const Memory& memory,
                  const std::function<void(ConstTensorView, TensorView)>& run);

using FormBody = std::function<void(const KindForms&, const Arrays&, const std::string& name)>;
/// With each number of rows, under a name of its own.
void for_each_kind(Communicator& comm, DataType dtype, const std::vector<int64_t>& row_counts,
                   const FormBody& body);

/// The forms that there are, of every kind: each leaves the communicator fit for the next.
void check_named(Communicator& comm, const std::vector<int64_t>& row_counts);
void check_by_handle(Communicator& comm, const std::vector<int64_t>& row_counts);
void check_blocking(Communicator& comm, const std::vector<int64_t>& row_counts);
void check_groups(Communicator& comm);

}  // namespace tutti::test
