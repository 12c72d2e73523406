"""TensorBoard without TensorFlow, which it imports if it is installed, for half a minute."""

import sys
import types

sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))  # asked for by tensorboard.compat
