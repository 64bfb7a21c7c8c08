//! The fragmenter: cuts a plan at its exchanges.

use std::sync::Arc;

use crate::plan::{Edge, EdgeId, ExchangeKind, Fragment, FragmentGraph, FragmentId, StreamNode, StreamOp, StreamPlan};

/// Cuts the plan. Fragments come out inputs first, the root last; the leaf that receives an edge keeps the exchange's operator id.
pub fn fragment(plan: &StreamPlan) -> FragmentGraph {
    let mut graph = FragmentGraph {
        fragments: Vec::new(),
        edges: Vec::new(),
    };
    cut(&plan.root, &mut graph);
    graph
}

/// Makes the fragment whose root is `node`.
fn cut(node: &StreamNode, graph: &mut FragmentGraph) -> FragmentId {
    let mut edges = Vec::new();
    let root = copy(node, graph, &mut edges);
    let id = FragmentId(graph.fragments.len() as u32);
    for edge in edges {
        graph.edges[edge].to = id;
    }
    let single = is_single(&root, graph);
    graph.fragments.push(Fragment { id, root, single });
    id
}

fn copy(node: &StreamNode, graph: &mut FragmentGraph, edges: &mut Vec<usize>) -> StreamNode {
    if let (StreamOp::Exchange { kind }, [input]) = (&node.op, node.inputs.as_slice()) {
        let from = cut(input, graph);
        let id = EdgeId(graph.edges.len() as u32);
        edges.push(graph.edges.len());
        // The receiver has no id yet; `cut` fills it in.
        graph.edges.push(Edge {
            id,
            from,
            to: from,
            kind: kind.clone(),
            schema: Arc::clone(&node.schema),
        });
        return StreamNode {
            op: StreamOp::Receive { edge: id },
            inputs: Vec::new(),
            id: node.id,
            schema: Arc::clone(&node.schema),
            props: node.props.clone(),
        };
    }
    let inputs = node.inputs.iter().map(|i| copy(i, graph, edges)).collect();
    StreamNode {
        id: node.id,
        op: node.op.clone(),
        inputs,
        schema: Arc::clone(&node.schema),
        props: node.props.clone(),
    }
}

/// Constant rows and edges of kind single are at one task, and whatever is fused with them.
fn is_single(root: &StreamNode, graph: &FragmentGraph) -> bool {
    let mut single = false;
    root.visit(&mut |node| match &node.op {
        StreamOp::Values { .. } => single = true,
        StreamOp::Receive { edge } => {
            single |= graph
                .edges
                .get(edge.0 as usize)
                .is_some_and(|e| e.kind == ExchangeKind::Single);
        }
        _ => {}
    });
    single
}
