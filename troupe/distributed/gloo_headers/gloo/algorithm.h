#pragma once  // context.h says why this is here
