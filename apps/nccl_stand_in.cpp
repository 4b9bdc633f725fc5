// A library whose name is as NCCL's, for accept_test.
#include <sys/socket.h>

// As NCCL does it, the result goes into memory: a last call would leave no return address here.
extern "C" void nccl_stand_in_accept(int listener, int* socket) {
  *socket = ::accept(listener, nullptr, nullptr);
}
