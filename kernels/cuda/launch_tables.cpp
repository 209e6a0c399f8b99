#include <stdexcept>
#include <string>

#include "kernels/cuda/hybrid/hybrid_launch.hpp"
#include "kernels/cuda/transfer/cross_entropy_launch.hpp"
#include "kernels/cuda/transfer/transfer_launch.hpp"

namespace hedgerow::kernels::cuda {
namespace {

const LaunchTable& table_of(KernelShape shape) {
  return shape.head_dim == 64 ? kLaunches64 : kLaunches128;
}

const TransferLaunchTable& transfer_table_of(int head_dim) {
  return head_dim == 64 ? kTransferLaunches64 : kTransferLaunches128;
}

const CrossEntropyLaunchTable& cross_entropy_table_of(KernelShape shape) {
  return shape.head_dim == 64 ? kCrossEntropyLaunches64 : kCrossEntropyLaunches128;
}

void require(bool launched, KernelShape shape) {
  if (!launched) {
    throw std::logic_error("hybrid kernels: none is compiled for head_dim " +
                           std::to_string(shape.head_dim) + " and " +
                           std::to_string(shape.projected) + " columns of a map" +
                           (shape.negation ? ", with negation" : ""));
  }
}

}  // namespace

bool has_kernel(KernelShape shape) { return table_of(shape).shared_bytes(shape, false, 0) > 0; }

std::size_t shared_bytes_needed(KernelShape shape, bool input_gradients) {
  return table_of(shape).shared_bytes(shape, input_gradients, device_limits().shared_bytes);
}

void launch_states(KernelShape shape, const StatesArguments& arguments, Stream stream) {
  require(table_of(shape).states(shape, arguments, stream), shape);
}

void launch_forward(KernelShape shape, const ForwardArguments& arguments, Stream stream) {
  require(table_of(shape).forward(shape, arguments, stream), shape);
}

void launch_backward_queries(KernelShape shape,
                             bool input_gradients,
                             const BackwardArguments& arguments,
                             Stream stream) {
  require(table_of(shape).backward_queries(shape, input_gradients, arguments, stream), shape);
}

void launch_backward_keys(KernelShape shape,
                          bool input_gradients,
                          const BackwardArguments& arguments,
                          Stream stream) {
  require(table_of(shape).backward_keys(shape, input_gradients, arguments, stream), shape);
}

void launch_softmax(int head_dim, const SoftmaxArguments& arguments, Stream stream) {
  transfer_table_of(head_dim).softmax(arguments, stream);
}

void launch_transfer(KernelShape shape, const TransferArguments& arguments, Stream stream) {
  require(transfer_table_of(shape.head_dim).transfer(shape, arguments, stream), shape);
}

std::size_t transfer_shared_bytes(KernelShape shape) {
  return transfer_table_of(shape.head_dim).shared_bytes(shape, device_limits().shared_bytes);
}

void launch_cross_entropy(KernelShape shape,
                          const CrossEntropyArguments& arguments,
                          Stream stream) {
  require(cross_entropy_table_of(shape).rows(shape, arguments, stream), shape);
}

void launch_cross_entropy_backward(KernelShape shape,
                                   Side side,
                                   const CrossEntropyBackwardArguments& arguments,
                                   Stream stream) {
  require(cross_entropy_table_of(shape).backward(shape, side, arguments, stream), shape);
}

std::size_t cross_entropy_shared_bytes(KernelShape shape) {
  return cross_entropy_table_of(shape).shared_bytes(shape);
}

}  // namespace hedgerow::kernels::cuda
