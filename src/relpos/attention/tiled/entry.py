from ..inputs import Inputs

def unavailable(): return None
def refuse(inputs: Inputs): return "not built"
def attention(inputs): raise NotImplementedError
