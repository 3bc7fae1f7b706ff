// cuBLASLt as a table of functions that check their arguments and compute with oneDNN.

#include <fmt/format.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <cstring>

#include "tests/fake_cuda/fake_cuda.h"
#include "tutti/kernels/convert.h"

namespace tutti::test {

namespace {

constexpr uint64_t kMagic = 0x6c74616c676f7269;

struct FakeProduct {
  cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;
};
struct FakeLayout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t matrices = 1;
  int64_t stride = 0;
};
struct FakePreference {
  size_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // the real library assumes the same
};
// The part of an algorithm that the fake stores in it.
struct FakeChoice {
  uint64_t magic, workspace;
  uint32_t alignment[4];
  uint64_t m, n, k;
  int32_t matrices;
};
static_assert(sizeof(FakeChoice) <= sizeof(cublasLtMatmulAlgo_t));

template <class Fake, class Opaque>
const Fake& fake_of(const Opaque* native) {
  return *reinterpret_cast<const Fake*>(native);
}

DataType dtype_of_cuda(cudaDataType_t type) {
  return type == CUDA_R_16BF ? DataType::bf16 : type == CUDA_R_16F ? DataType::f16 : DataType::f32;
}

size_t bytes_of_layout(const FakeLayout& layout) {
  const auto elements = static_cast<uint64_t>(layout.leading) * (layout.columns - 1) + layout.rows +
                        static_cast<uint64_t>(layout.stride * (layout.matrices - 1));
  return elements * static_cast<uint64_t>(size_of(dtype_of_cuda(layout.type)));
}

std::vector<float> floats_at(const void* data, DataType dtype, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  cast(dtype, static_cast<const std::byte*>(data), DataType::f32,
       reinterpret_cast<std::byte*>(values.data()), count);
  return values;
}

cublasStatus_t refuse(const std::string& what) {
  fake_cuda().add_fault("cuBLASLt: " + what);
  return CUBLAS_STATUS_INVALID_VALUE;
}

size_t get_version() {
  const size_t told = fake_troubles().cublaslt_version;
  return told == 0 ? 130'100 : told;
}
const char* status_string(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "CUBLAS_STATUS_INVALID_VALUE";
}
cublasStatus_t create(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_create(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                           cudaDataType_t scale) {
  if (scale != CUDA_R_32F || compute != CUBLAS_COMPUTE_32F) return refuse("sums are not of f32");
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new FakeProduct);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_destroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<FakeProduct*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t put(T& field, const void* value, size_t bytes) {
  if (bytes != sizeof field) return refuse("an attribute has another size");
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                        const void* value, size_t bytes) {
  auto& product = *reinterpret_cast<FakeProduct*>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return put(product.trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return put(product.trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return put(product.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return put(product.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return put(product.bias_type, value, bytes);
    default:
      return refuse(fmt::format("attribute {} of a product is not known", int{attribute}));
  }
}
cublasStatus_t layout_create(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                             uint64_t columns, int64_t leading) {
  if (leading < static_cast<int64_t>(rows)) return refuse("a leading dimension below the rows");
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new FakeLayout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t layout_set(cublasLtMatrixLayout_t native, cublasLtMatrixLayoutAttribute_t attribute,
                          const void* value, size_t bytes) {
  auto& layout = *reinterpret_cast<FakeLayout*>(native);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return put(layout.matrices, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return put(layout.stride, value, bytes);
    default:
      return refuse("an attribute of a matrix that is not known");
  }
}
cublasStatus_t layout_destroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<const FakeLayout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_create(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new FakePreference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_destroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<FakePreference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_set(cublasLtMatmulPreference_t native,
                              cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                              size_t bytes) {
  auto& preference = *reinterpret_cast<FakePreference*>(native);
  uint32_t mask = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return put(preference.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return put(preference.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return put(preference.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return put(preference.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return put(preference.alignment[3], value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      if (const auto status = put(mask, value, bytes); status != CUBLAS_STATUS_SUCCESS)
        return status;
      return (mask & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) != 0
                 ? refuse("split sums would be rounded to the type of the output")
                 : CUBLAS_STATUS_SUCCESS;
    default:
      return refuse("a preference that is not known");
  }
}

// Sets the product's extents; returns false if the sides do not fit.
bool fit(const FakeProduct& product, const FakeLayout& a, const FakeLayout& b, const FakeLayout& d,
         FakeChoice& choice) {
  const bool ta = product.trans_a == CUBLAS_OP_T, tb = product.trans_b == CUBLAS_OP_T;
  choice.m = ta ? a.columns : a.rows;
  choice.k = ta ? a.rows : a.columns;
  choice.n = tb ? b.rows : b.columns;
  choice.matrices = d.matrices;
  return choice.k == (tb ? b.columns : b.rows) && d.rows == choice.m && d.columns == choice.n &&
         a.matrices == d.matrices && b.matrices == d.matrices;
}

cublasStatus_t heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                         cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int most,
                         cublasLtMatmulHeuristicResult_t results[], int* found) {
  fake_cuda().count_call("cublasLtMatmulAlgoGetHeuristic");
  *found = 0;
  const auto &a_of = fake_of<FakeLayout>(a), &b_of = fake_of<FakeLayout>(b),
             &d_of = fake_of<FakeLayout>(d);
  FakeChoice choice{};
  if (!fit(fake_of<FakeProduct>(desc), a_of, b_of, d_of, choice) || c != d)
    return refuse("the sides of a product do not fit");
  if (a_of.type != b_of.type || (d_of.type != a_of.type && d_of.type != CUDA_R_32F))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto& wanted = fake_of<FakePreference>(preference);
  choice.magic = kMagic;
  // An odd size, so that a workspace that is one byte too small is detected.
  choice.workspace = 4097 + 64 * (choice.m % 5);
  std::memcpy(choice.alignment, wanted.alignment, sizeof choice.alignment);
  if (most < 1 || choice.workspace > wanted.workspace) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(&results[0].algo, &choice, sizeof choice);
  results[0].workspaceSize = choice.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t matmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                      cublasLtMatrixLayout_t a_layout, const void* b,
                      cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                      cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                      const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                      cudaStream_t stream) {
  auto& device = fake_cuda();
  device.count_call("cublasLtMatmul");
  const auto product = fake_of<FakeProduct>(desc);
  const auto a_of = fake_of<FakeLayout>(a_layout), b_of = fake_of<FakeLayout>(b_layout),
             d_of = fake_of<FakeLayout>(d_layout);
  FakeChoice choice{}, now{};
  if (algo == nullptr) return refuse("no algorithm was chosen");
  std::memcpy(&choice, algo, sizeof choice);
  if (choice.magic != kMagic || !fit(product, a_of, b_of, d_of, now) || now.m != choice.m ||
      now.n != choice.n || now.k != choice.k || now.matrices != choice.matrices)
    return refuse("the algorithm was chosen for another product");
  const void* sides[] = {a, b, c, d};
  const FakeLayout layouts[] = {a_of, b_of, d_of, d_of};
  for (int i = 0; i < 4; ++i) {
    const auto between =
        static_cast<uintptr_t>(layouts[i].stride * size_of(dtype_of_cuda(layouts[i].type)));
    if ((reinterpret_cast<uintptr_t>(sides[i]) | between) % choice.alignment[i] != 0)
      return refuse(fmt::format("side {} is aligned worse than its algorithm was chosen for", i));
    if (!device.owns(sides[i], bytes_of_layout(layouts[i])))
      return refuse(fmt::format("side {} is not memory of the device", i));
  }
  if (workspace_bytes < choice.workspace || !device.owns(workspace, workspace_bytes) ||
      reinterpret_cast<uintptr_t>(workspace) % 256 != 0)
    return refuse(fmt::format("the workspace is not {} bytes of the device, aligned to 256",
                              choice.workspace));
  const bool has_bias = product.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (has_bias && (product.bias_type != d_of.type ||
                   !device.owns(product.bias, choice.m * static_cast<uint64_t>(size_of(
                                                             dtype_of_cuda(product.bias_type))))))
    return refuse("the bias is not a vector of the output's type on the device");
  const float one = *static_cast<const float*>(alpha), rest = *static_cast<const float*>(beta);
  device.enqueue({stream}, [=] {
    omp_set_num_threads(1);
    std::memset(workspace, 0x5a, workspace_bytes);
    const auto count = [](const FakeLayout& l) {
      return l.leading * static_cast<int64_t>(l.columns - 1) + static_cast<int64_t>(l.rows);
    };
    const auto type = dtype_of_cuda(a_of.type), to = dtype_of_cuda(d_of.type);
    for (int32_t matrix = 0; matrix < d_of.matrices; ++matrix) {
      const auto at = [matrix](const void* side, const FakeLayout& l) {
        return static_cast<const std::byte*>(side) +
               matrix * l.stride * size_of(dtype_of_cuda(l.type));
      };
      const auto left = floats_at(at(a, a_of), type, count(a_of)),
                 right = floats_at(at(b, b_of), type, count(b_of));
      // Values between the columns must not change.
      auto sums = floats_at(at(d, d_of), to, count(d_of));
      const auto m = static_cast<dnnl_dim_t>(choice.m), n = static_cast<dnnl_dim_t>(choice.n),
                 k = static_cast<dnnl_dim_t>(choice.k);
      // cuBLASLt's matrices are column-major and oneDNN's row-major, so the transposed product is
      // computed.
      dnnl_sgemm(product.trans_b == CUBLAS_OP_T ? 'T' : 'N',
                 product.trans_a == CUBLAS_OP_T ? 'T' : 'N', n, m, k, one, right.data(),
                 b_of.leading, left.data(), a_of.leading, rest, sums.data(), d_of.leading);
      if (has_bias) {
        const auto bias = floats_at(product.bias, dtype_of_cuda(product.bias_type), m);
        for (dnnl_dim_t column = 0; column < n; ++column)
          for (dnnl_dim_t row = 0; row < m; ++row)
            sums[static_cast<size_t>(column * d_of.leading + row)] +=
                bias[static_cast<size_t>(row)];
      }
      cast(DataType::f32, reinterpret_cast<const std::byte*>(sums.data()), to,
           const_cast<std::byte*>(at(d, d_of)), count(d_of));
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cuda::CublasLt fake_cublaslt() {
  const auto& troubles = fake_troubles();
  if (!troubles.cublaslt_file.empty()) return cuda::load_cublaslt(troubles.cublaslt_file);
  cuda::require_cublaslt("the fake libcublasLt", get_version());
  cuda::CublasLt table;
  table.cublasLtGetVersion = get_version;
  table.cublasLtGetStatusString = status_string;
  table.cublasLtCreate = create;
  table.cublasLtDestroy = destroy;
  table.cublasLtMatmulDescCreate = desc_create;
  table.cublasLtMatmulDescDestroy = desc_destroy;
  table.cublasLtMatmulDescSetAttribute = desc_set;
  table.cublasLtMatrixLayoutCreate = layout_create;
  table.cublasLtMatrixLayoutSetAttribute = layout_set;
  table.cublasLtMatrixLayoutDestroy = layout_destroy;
  table.cublasLtMatmulPreferenceCreate = preference_create;
  table.cublasLtMatmulPreferenceDestroy = preference_destroy;
  table.cublasLtMatmulPreferenceSetAttribute = preference_set;
  table.cublasLtMatmulAlgoGetHeuristic = heuristic;
  table.cublasLtMatmul = matmul;
  return table;
}

}  // namespace tutti::test
