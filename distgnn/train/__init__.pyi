from .export import export_weights as export_weights
from .full_graph import train as train
from .minibatch import MinibatchTraining as MinibatchTraining
from .minibatches import Minibatches as Minibatches
from .predict import Predictor as Predictor
from .run import Run as Run
from .settings import Settings as Settings
from .vertices import VertexTraining as VertexTraining
